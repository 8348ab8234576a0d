"""One agent whose pictures MuJoCo renders: a Gymnasium environment for supervised workers, `renderer=mujoco`.

Moves, rewards and ends of episodes are those of `SketchNavEnv`; only camera and depth come from GL.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from typing import Any

import numpy as np

SCENES = 8
"""Plans whose scenes are kept: building one takes some ten milliseconds."""


class MujocoNavEnv:
    """As `SketchNavEnv` with one row.

    Args:
        file: Episodes, as `Episodes.save` writes them.
        rules: Fields of `Rules`.
        pixels: S, along the pictures.
        sensors: Fields of `Sensors`; shading is MuJoCo's own.
    """

    def __init__(self, file: str, rules: dict[str, Any], pixels: int, sensors: dict[str, Any] | None = None) -> None:
        from pathlib import Path

        from gymnasium.spaces import Box, Dict, Discrete

        from .env import LEAST_PX, SketchNavEnv
        from .episodes import Episodes
        from .sensors import Sensors
        from .world import NUM_ACTIONS, Rules

        self.rules, self.pixels = Rules(**rules), pixels
        # The ray caster draws what nobody looks at: as little as it can.
        episodes = _without_sketches(Episodes.load(Path(file))[0])
        self.nav = SketchNavEnv(1, episodes, self.rules, pixels=LEAST_PX, threads=1, sensors=Sensors(**(sensors or {})))
        self.scenes: OrderedDict[int, Any] = OrderedDict()
        self.renderer: str | None = None
        self.max_episode_steps = self.rules.max_steps
        self.action_space = Discrete(NUM_ACTIONS)
        self.observation_space = Dict(
            {
                "rgb": Box(0, 255, (3, pixels, pixels), np.uint8),
                "depth": Box(0, 255, (1, pixels, pixels), np.uint8),
                "gps": Box(-np.inf, np.inf, (2,), np.float32),
                "compass": Box(-np.pi, np.pi, (1,), np.float32),
                "episode": Discrete(len(self.nav.episodes)),
            }
        )

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[dict[str, np.ndarray], dict]:
        """The next episode; with a seed, the one that it draws."""
        return self._seen(self.nav.reset(seed)), {}

    def step(self, action: int) -> tuple[dict[str, np.ndarray], float, bool, bool, dict]:
        """One action; the episode's figures are in the info of its last step."""
        import torch

        nav = self.nav
        nav.move(torch.tensor([int(action)]))
        ended = int(nav.agents.ended[0])
        figures = {name: float(value[0]) for name, value in nav.figures().items()} if ended else {}
        return self._seen(nav.observe()), float(nav.agents.reward[0]), ended == 1, ended == 2, figures

    def close(self) -> None:
        """Lets the scenes go; the GL context stays with its process."""
        self.scenes.clear()

    def _seen(self, obs: dict[str, Any]) -> dict[str, np.ndarray]:
        from .episodes import HEADINGS, UNIT_M
        from .world import FAR_M, NEAR_M

        nav = self.nav
        plan = int(nav.episodes.plan[int(nav.agents.episode[0])])
        x, y = (nav.agents.at[0].double() * UNIT_M).tolist()
        rgb, depth = self._scene(plan).see(x, y, 2 * np.pi * int(nav.agents.heading[0]) / HEADINGS)
        share = np.clip((depth - NEAR_M) / (FAR_M - NEAR_M), 0, 1)
        pictures = rgb.transpose(2, 0, 1), (255 * share + 0.5).astype(np.uint8)[None]
        if nav.sensors.pictures:
            pictures = self._blurred(*pictures, depth)
        return {
            "rgb": pictures[0],
            "depth": pictures[1],
            "gps": obs["gps"][0].numpy().copy(),
            "compass": obs["compass"][0].numpy().copy(),
            "episode": np.int64(int(obs["episode"][0])),
        }

    def _blurred(self, rgb: np.ndarray, level: np.ndarray, depth: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Colours (3, S, S) and depth levels (1, S, S) with the noise of this step; depth (S, S) in metres."""
        import torch

        pictures = [torch.from_numpy(np.ascontiguousarray(each)[None]) for each in (rgb, level, depth[None])]
        self.nav.blur(*pictures)
        return pictures[0][0].numpy(), pictures[1][0].numpy()

    def _scene(self, plan: int) -> Any:
        from .mujoco_scene import MujocoView

        if plan in self.scenes:
            self.scenes.move_to_end(plan)
        else:
            if len(self.scenes) == SCENES:
                self.scenes.popitem(last=False)
            self.scenes[plan] = MujocoView(self.nav.episodes.cells_of(plan), self.pixels)
            self.renderer = self.scenes[plan].device
        return self.scenes[plan]


def _without_sketches(episodes: Any) -> Any:
    """A policy looks them up by the number of the episode: workers need not hold them."""
    return replace(episodes, sketch=episodes.sketch[:, :, :1, :1].contiguous())
