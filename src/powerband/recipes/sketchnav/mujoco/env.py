"""MujocoNavEnv: a Gymnasium environment of one agent whose images MuJoCo renders, for supervised worker processes.

Moves, rewards and episode ends are those of `SketchNavEnv`. Only the camera images come from OpenGL.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from powerband.recipes.sketchnav.env.env import SketchNavEnv
from powerband.recipes.sketchnav.env.world import FAR_M, NEAR_M, NUM_ACTIONS
from powerband.recipes.sketchnav.mujoco.scene import MujocoRenderer
from powerband.recipes.sketchnav.plans.episodes.episodes import COORDINATE_UNIT_M, HEADINGS, Episodes
from powerband.recipes.sketchnav.settings import MIN_PIXELS, Rules, Sensors

MAX_RENDERERS = 8
"""Largest number of plans whose scenes are kept, because building a scene takes about ten milliseconds."""


class MujocoNavEnv:
    """Gymnasium environment like `SketchNavEnv`, with one agent and camera images that MuJoCo renders.

    Args:
        file: File of episodes, as `Episodes.save` writes it.
        rules: Fields of `Rules` by name.
        pixels: S, side of the images.
        sensors: Fields of `Sensors` by name, of which MuJoCo ignores `shading`; None adds no noise.

    Attributes:
        renderer: Name of the OpenGL device that renders the images; None before the first image.
    """

    def __init__(self, file: str, rules: dict[str, Any], pixels: int, sensors: dict[str, Any] | None = None) -> None:
        from gymnasium.spaces import Box, Dict, Discrete  # an optional package, which the ray caster does not need

        self.rules, self.pixels = Rules(**rules), pixels
        episodes = _without_sketches(Episodes.load(Path(file))[0])
        # The images of the ray caster are not used, so they are as small as possible.
        self.nav = SketchNavEnv(
            1, episodes, self.rules, pixels=MIN_PIXELS, threads=1, sensors=Sensors(**(sensors or {}))
        )
        self.renderers: OrderedDict[int, MujocoRenderer] = OrderedDict()
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

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[dict[str, Any], dict]:
        """Begins the next episode and returns (observation, empty dict).

        A seed restarts the random stream that selects the episodes; None continues it. `options` are ignored.
        """
        return self._observe(self.nav.reset(seed)), {}

    def step(self, action: int) -> tuple[dict[str, Any], float, bool, bool, dict]:
        """Executes one action and returns (observation, reward, terminated, truncated, info).

        At the end of an episode `info` has ``success``, ``spl``, ``soft_spl`` and ``distance_to_goal`` (metres); before
        the end it is empty.
        """
        nav = self.nav
        nav.move(torch.tensor([int(action)]))
        ended = int(nav.agents.ended[0])
        metrics = {name: float(value[0]) for name, value in nav.episode_metrics().items()} if ended else {}
        return self._observe(nav.observe()), float(nav.agents.reward[0]), ended == 1, ended == 2, metrics

    def close(self) -> None:
        """Releases the scenes; the OpenGL context stays until the process ends."""
        self.renderers.clear()

    def _observe(self, obs: dict[str, Any]) -> dict[str, Any]:
        """Returns an observation with images by MuJoCo; GPS, compass and episode come from `obs` of `SketchNavEnv`."""
        nav = self.nav
        plan = int(nav.episodes.plan[int(nav.agents.episode[0])])
        x, y = (nav.agents.at[0].double() * COORDINATE_UNIT_M).tolist()
        rgb, depth = self._renderer_of(plan).render(x, y, 2 * np.pi * int(nav.agents.heading[0]) / HEADINGS)
        share = np.clip((depth - NEAR_M) / (FAR_M - NEAR_M), 0, 1)
        images = rgb.transpose(2, 0, 1), (255 * share + 0.5).astype(np.uint8)[None]
        if nav.sensors.image_noise:
            images = self._add_noise(*images, depth)
        return {
            "rgb": images[0],
            "depth": images[1],
            "gps": obs["gps"][0].numpy().copy(),
            "compass": obs["compass"][0].numpy().copy(),
            "episode": np.int64(int(obs["episode"][0])),
        }

    def _add_noise(self, rgb: np.ndarray, level: np.ndarray, depth: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Adds noise to one image.

        Args:
            rgb: Colours (3, S, S) uint8 of S x S pixels.
            level: Depth (1, S, S) uint8 without noise.
            depth: Exact depth (S, S) float32 in metres.

        Returns:
            Noisy colours (3, S, S) and noisy depth (1, S, S), both uint8.
        """
        colours, levels, metres = (
            torch.from_numpy(np.ascontiguousarray(each)[None]) for each in (rgb, level, depth[None])
        )
        self.nav.add_image_noise(colours, levels, metres)
        return colours[0].numpy(), levels[0].numpy()

    def _renderer_of(self, plan: int) -> MujocoRenderer:
        if plan in self.renderers:
            self.renderers.move_to_end(plan)
        else:
            if len(self.renderers) == MAX_RENDERERS:
                self.renderers.popitem(last=False)
            self.renderers[plan] = MujocoRenderer(self.nav.episodes.plan_cells(plan), self.pixels)
            self.renderer = self.renderers[plan].device
        return self.renderers[plan]


def _without_sketches(episodes: Episodes) -> Episodes:
    """Returns `episodes` with sketches of one pixel, because only policies, not environments, read sketches."""
    return replace(episodes, sketch=episodes.sketch[:, :, :1, :1].contiguous())
