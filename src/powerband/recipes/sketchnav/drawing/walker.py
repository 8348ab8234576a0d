"""Walker: one agent that navigates by a sketch from the page, one action per request."""

from __future__ import annotations

import io
from base64 import b64decode, b64encode
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from powerband.core.errors import ConfigError
from powerband.core.noise import NoiseSource
from powerband.recipes.sketchnav.config import Config
from powerband.recipes.sketchnav.env.env import SketchNavEnv
from powerband.recipes.sketchnav.environments import make_evaluation_env
from powerband.recipes.sketchnav.plans.cell_codes import CELL_M
from powerband.recipes.sketchnav.plans.distance import (
    BLOCKED,
    distance_field,
    largest_component,
    navigable,
    shortest_path,
)
from powerband.recipes.sketchnav.plans.episodes.builder import EpisodeBuilder
from powerband.recipes.sketchnav.plans.episodes.episodes import COORDINATE_UNIT_M, HEADINGS, Episodes
from powerband.recipes.sketchnav.plans.images import plan_image
from powerband.recipes.sketchnav.plans.plan import Plan
from powerband.recipes.sketchnav.plans.sketch import PageTransform, downsample_page, read_sketch
from powerband.recipes.sketchnav.policies import (
    Act,
    NavigationLearner,
    device_of,
    encoder_of,
    named_policy,
    on_device,
)

POLICIES = ("policy", "expert")
"""Policies that the page offers: that of the run, and the follower of the shortest path."""
SNAP_M = 1.0
"""Largest distance from a start or goal of the user to free space."""
DATA_URL = "data:image/png;base64,"


class Walker:
    """Plays episodes that the page defines: a plan, a start, a goal and a sketch.

    Args:
        config: Configuration of the run.
        learner: Learner of the run, with its trained weights.
        plans: Floor plans, name -> plan.
    """

    def __init__(self, config: Config, learner: NavigationLearner, plans: dict[str, Plan]) -> None:
        self.config, self.learner, self.plans = config, learner, plans
        self._env: SketchNavEnv | None = None
        self._act: Act | None = None
        self._carry: Any = None
        self._obs: Any = None
        self._policy = self._result = ""
        self._last: dict[str, Any] = {}

    def describe(self) -> list[dict[str, Any]]:
        """Returns, for each plan, what the page draws.

        Returns:
            ``name``; ``image``, the plan from above as a data URL, with one pixel per cell; ``size``, width and height
            in metres; ``scale`` and ``shift``, the pixels of a metre and of the origin on a page that is not distorted;
            and ``walls``, lines (x0, y0, x1, y1) in metres.
        """
        rows = []
        for name, plan in self.plans.items():
            origin, unit = PageTransform(plan, None)(np.array([(0.0, 0.0), (1.0, 0.0)]))
            rows.append(
                {
                    "name": name,
                    "image": _data_url(plan_image(plan.cells)),
                    "size": plan.size_m,
                    "scale": float(unit[0] - origin[0]),
                    "shift": origin.tolist(),
                    "walls": plan.walls.tolist(),
                }
            )
        return rows

    def start(self, request: dict[str, Any]) -> dict[str, Any]:
        """Begins an episode.

        Args:
            request: ``plan``, its name; ``start`` and ``goal``, positions (x, y) in metres; ``sketch``, an image as a
                data URL of a PNG; ``policy``, a name in `POLICIES`.

        Returns:
            The state, as `step` returns it.

        Raises:
            ConfigError: The request is not valid, or no path leads from the start to the goal.
        """
        try:
            plan, policy = self.plans[request["plan"]], str(request["policy"])
            start_m, goal_m = (np.array(request[name], np.float64).reshape(2) for name in ("start", "goal"))
            sketch = str(request["sketch"])
            content = b64decode(sketch.removeprefix(DATA_URL), validate=True)
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"The request is not valid: {error}. Reload the page.") from None
        if policy not in POLICIES:
            raise ConfigError(f"Unknown policy {policy!r}. Available: {', '.join(POLICIES)}.")
        page = read_sketch("of the page", content)
        episodes = self._episode(plan, start_m, goal_m)
        pixels = torch.from_numpy(downsample_page(page, self.config.scenes.sketch_px))
        episodes = replace(episodes, sketch=pixels.unsqueeze(0))
        self.learner.noise = NoiseSource(0, device_of(self.learner))
        self._act, carry = named_policy(policy, self.learner, episodes)
        self._carry, self._result = carry(1), ""
        self._env = make_evaluation_env(self.config, episodes, 1, None)
        self._obs = self._env.observe()
        self._policy = policy
        return self._state()

    def _episode(self, plan: Plan, start_m: np.ndarray, goal_m: np.ndarray) -> Episodes:
        """Builds the episode from a start (2,) to a goal (2,) in metres, with an empty page as its sketch."""
        free = largest_component(navigable(plan.cells))
        places = np.argwhere(free)
        cells = []
        for name, point in (("start", start_m), ("goal", goal_m)):
            away = np.hypot(places[:, 1] + 0.5 - point[0] / CELL_M, places[:, 0] + 0.5 - point[1] / CELL_M) * CELL_M
            nearest = int(away.argmin())
            if not away[nearest] <= SNAP_M:  # nan, too
                raise ConfigError(f"The {name} is {away[nearest]:.1f} m away from free space. Put it into a room.")
            cells.append((int(places[nearest, 1]), int(places[nearest, 0])))
        start, goal = cells
        if start == goal:
            raise ConfigError("Start and goal are at the same place. Put the goal somewhere else.")
        field = distance_field(free, *goal)
        if field[start[1], start[0]] == BLOCKED:
            raise ConfigError("The path from the start to the goal is longer than 65 m. Put the goal nearer.")
        path = shortest_path(free, field, *start)
        ahead = path[1] - path[0]
        heading = round(float(np.arctan2(ahead[1], ahead[0])) / (2 * np.pi) * HEADINGS) % HEADINGS
        builder = EpisodeBuilder(replace(self.config.scenes, sketch="blank"), "val_unseen", 0)
        builder.add_plan(plan)
        builder.add_goal(field, goal)
        builder.add_episode(start, heading, path)
        return builder.build()

    def step(self) -> dict[str, Any]:
        """Executes one action of the policy; after the end of the episode it changes nothing.

        Returns:
            The state: ``at`` (x, y) in metres; ``heading`` in radians, clockwise from the x axis; ``steps``;
            ``distance`` to the goal in metres; ``camera``, the image as a data URL; ``estimate``, the position on the
            sketch that the policy estimates (x, y) in 0..1, or null; ``result``, "" until the episode has ended.

        Raises:
            ConfigError: No episode has begun.
        """
        if self._env is None or self._act is None:
            raise ConfigError("No episode has begun. Press Start.")
        if self._result:
            return self._state()
        action, self._carry = self._act(self._env, self._obs, self._carry)
        before = self._state()
        step = self._env.step(action)
        if bool(step.ended[0]):  # the environment is at the start of the next episode
            metrics = {name: float(value[0]) for name, value in step.episode.items()}
            outcome = "Success" if metrics["success"] else "Failure"
            self._result = f"{outcome}: SPL {metrics['spl']:.2f}, {metrics['distance_to_goal']:.1f} m to the goal"
            self._last = {**before, "steps": before["steps"] + 1, "result": self._result}
            return self._last
        self._obs = step.obs
        return self._state()

    def _state(self) -> dict[str, Any]:
        """Returns the present state, which `step` describes."""
        if self._result:
            return self._last
        env = self._env
        assert env is not None
        rgb, _ = env.render_metric()
        estimate = None
        if self._policy == "policy":
            obs = on_device(self._obs, device_of(self.learner))
            estimate = encoder_of(self.learner).estimated_position(obs)
        return {
            "at": (env.agents.at[0].numpy() * COORDINATE_UNIT_M).tolist(),
            "heading": 2 * np.pi * int(env.agents.heading[0]) / HEADINGS,
            "steps": int(env.agents.made[0]),
            "distance": float(env.agents.distance[0]),
            "camera": _data_url(rgb[0].numpy().transpose(1, 2, 0)),
            "estimate": None if estimate is None else estimate[0].tolist(),
            "result": "",
        }


def _data_url(image: np.ndarray) -> str:
    """Returns an image (height, width, 3) uint8 as a data URL of a PNG."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(image)).save(file, "PNG")
    return DATA_URL + b64encode(file.getvalue()).decode()
