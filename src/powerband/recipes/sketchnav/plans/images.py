"""Draws images of an episode (sketch, plan with shortest path and trajectory, camera, depth) and overviews of plans."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor

from powerband.recipes.sketchnav.env.env import SketchNavEnv
from powerband.recipes.sketchnav.env.world import FAR_M, NEAR_M
from powerband.recipes.sketchnav.plans.cell_codes import CELL_M, colours, heights
from powerband.recipes.sketchnav.plans.episodes.episodes import COORDINATE_UNIT_M, HEADINGS
from powerband.recipes.sketchnav.plans.episodes.generation import generate_episodes
from powerband.recipes.sketchnav.plans.plan import Plan
from powerband.recipes.sketchnav.plans.sketch import GOAL_RGB, PATH_RGB, START_RGB
from powerband.recipes.sketchnav.settings import PAGE_PX, EpisodeConfig, Level, Split

SIDE_PX, GAP_PX = 360, 12
"""Side of each part of a frame, and the gap between two parts."""
TRAJECTORY_RGB = (20, 120, 255)
SHEET_LEVELS: tuple[Level, ...] = ("smooth", "abstract")
"""Levels of the sketches on an overview of plans."""


@dataclass(frozen=True)
class EpisodeFrame:
    """One step of one agent, as numpy arrays in host memory.

    The plan has H x W cells, the sketch s x s pixels, the camera image S x S pixels, and the shortest path L corners.
    Points are (x, y).

    Attributes:
        cells: Codes of the plan's cells (H, W) uint8: numbers for floor, wall, door frame or furniture.
        sketch: Sketch (s, s, 3) uint8.
        rgb: Colours of the camera (S, S, 3) uint8.
        depth: Depth (S, S) float32 in metres.
        shortest_path: Corners of the shortest path (L, 2) in metres.
        trajectory: The k positions of the agent so far (k, 2) in metres.
        goal: Position of the goal (2,) in metres.
        heading: Heading in radians, clockwise from the x axis.
        caption: Text above the plan.
        estimated_path: Positions on the sketch that the policy has estimated (k, 2) in 0..1; k = 0 for none.
    """

    cells: np.ndarray
    sketch: np.ndarray
    rgb: np.ndarray
    depth: np.ndarray
    shortest_path: np.ndarray
    trajectory: np.ndarray
    goal: np.ndarray
    heading: float
    caption: str
    estimated_path: np.ndarray


def record_episode(
    env: SketchNavEnv,
    act: Callable[[SketchNavEnv, Any, Tensor | None], tuple[Tensor, Tensor | None]],
    carry: Tensor | None,
    estimated_position: Callable[[Any], Tensor | None] = lambda obs: None,
) -> list[EpisodeFrame]:
    """Plays the present episode of an environment with one agent to its end.

    Args:
        env: Environment with one agent.
        act: Policy (environment, observations, carry) -> (actions, carry).
        carry: Initial carry, the memory of the policy; None without memory.
        estimated_position: Function from observations to the estimated position (1, 2) on the sketch, or None.

    Returns:
        A frame before each action, and a frame after the last action.
    """
    obs = env.observe()
    frames: list[EpisodeFrame] = []
    trajectory: list[np.ndarray] = []
    estimates: list[np.ndarray] = []
    episode = int(env.agents.episode[0])
    cells, corners = env.episodes.plan_cells(int(env.episodes.plan[episode])), env.episodes.path_corners(episode)
    goal = env.episodes.target[episode].cpu().numpy() * COORDINATE_UNIT_M
    sketch = env.episodes.sketch[episode].cpu().numpy().transpose(1, 2, 0)
    while True:
        rgb, depth = env.render_metric()
        trajectory.append(env.agents.at[0].cpu().numpy() * COORDINATE_UNIT_M)
        if (estimate := estimated_position(obs)) is not None:
            estimates.append(estimate[0].cpu().numpy())
        frames.append(
            EpisodeFrame(
                cells=cells,
                sketch=sketch,
                rgb=rgb[0].cpu().numpy().transpose(1, 2, 0),
                depth=depth[0, 0].cpu().numpy(),
                shortest_path=corners,
                trajectory=np.array(trajectory),
                goal=goal,
                heading=2 * np.pi * int(env.agents.heading[0]) / HEADINGS,
                caption=f"step {int(env.agents.made[0])}, {float(env.agents.distance[0]):.1f} m to go",
                estimated_path=np.array(estimates).reshape(-1, 2),
            )
        )
        action, carry = act(env, obs, carry)
        step = env.step(action)
        if bool(step.ended[0]):
            metrics = {name: float(value[0]) for name, value in step.episode.items()}
            result = "success" if metrics["success"] else "failure"
            caption = (
                f"{result}: SPL {metrics['spl']:.2f}, {metrics['distance_to_goal']:.1f} m to go, {len(frames)} steps"
            )
            return [*frames, replace(frames[-1], caption=caption)]
        obs = step.obs


def plan_image(cells: np.ndarray) -> np.ndarray:
    """Draws a plan of H x W cells from above as (H, W, 3) uint8, one pixel per cell, with dark walls."""
    rgb = colours()[cells]
    rgb[heights()[cells] >= 2] = (45, 45, 45)
    return rgb.astype(np.uint8)


def frame_image(frame: EpisodeFrame) -> np.ndarray:
    """Draws a frame (one step of an episode) as an image (height, width, 3) uint8.

    The image shows sketch, plan with shortest path and trajectory, camera and depth from left to right.
    """
    from PIL import Image, ImageDraw

    grey = np.clip((frame.depth - NEAR_M) / (FAR_M - NEAR_M), 0, 1)
    depth = np.repeat((255 * (1 - grey)).astype(np.uint8)[..., None], 3, -1)
    parts = (_sketch_part(frame), _plan_part(frame), _scaled(frame.rgb), _scaled(depth))
    titles = (
        "sketch with the estimated position" if len(frame.estimated_path) else "sketch",
        f"plan: {frame.caption}",
        "camera",
        f"depth, {NEAR_M:g} to {FAR_M:g} m",
    )
    canvas = Image.new("RGB", (4 * SIDE_PX + 5 * GAP_PX, SIDE_PX + 2 * GAP_PX + 24), (255, 255, 255))
    draw = ImageDraw.Draw(canvas)
    for number, (part, title) in enumerate(zip(parts, titles, strict=True)):
        left = GAP_PX + number * (SIDE_PX + GAP_PX)
        canvas.paste(part, (left, GAP_PX + 22))
        draw.text((left, 10), title, fill=(0, 0, 0))
    return np.asarray(canvas)


def _plan_part(frame: EpisodeFrame) -> Any:
    """Draws the plan from above, with the shortest path, the trajectory, start, goal and agent; returns a PIL image."""
    from PIL import Image, ImageDraw

    plan = plan_image(frame.cells)
    scale = SIDE_PX / max(plan.shape[:2])
    part = Image.new("RGB", (SIDE_PX, SIDE_PX), (255, 255, 255))
    size = (round(plan.shape[1] * scale), round(plan.shape[0] * scale))
    part.paste(Image.fromarray(plan).resize(size, Image.Resampling.NEAREST))
    draw = ImageDraw.Draw(part)

    def to_pixels(points: np.ndarray) -> list[tuple[float, ...]]:
        return [tuple(point / CELL_M * scale) for point in np.atleast_2d(points)]

    draw.line(to_pixels(frame.shortest_path), fill=PATH_RGB, width=2)
    if len(frame.trajectory) > 1:
        draw.line(to_pixels(frame.trajectory), fill=TRAJECTORY_RGB, width=3)
    for point, colour in ((frame.shortest_path[0], START_RGB), (frame.goal, GOAL_RGB)):
        x, y = to_pixels(point)[0]
        draw.ellipse((x - 5, y - 5, x + 5, y + 5), fill=colour)
    _draw_agent(draw, to_pixels(frame.trajectory[-1])[0], frame.heading)
    return part


def _sketch_part(frame: EpisodeFrame) -> Any:
    """Draws the sketch with the estimated positions of the agent; returns a PIL image."""
    from PIL import ImageDraw

    part = _scaled(frame.sketch)
    if len(frame.estimated_path):
        draw, points = ImageDraw.Draw(part), [tuple(point) for point in frame.estimated_path * SIDE_PX]
        if len(points) > 1:
            draw.line(points, fill=TRAJECTORY_RGB, width=2)
        _draw_agent(draw, points[-1], frame.heading)
    return part


def _draw_agent(draw: Any, at: tuple[float, ...], heading: float) -> None:
    """Draws an agent as an arrow head at pixel `at`; `heading` is in radians, clockwise from the x axis."""
    ahead = np.array([np.cos(heading), np.sin(heading)])
    aside = np.array([-ahead[1], ahead[0]])
    corners = [tuple(np.array(at) + offset) for offset in (9 * ahead, 6 * aside - 5 * ahead, -6 * aside - 5 * ahead)]
    draw.polygon(corners, fill=TRAJECTORY_RGB, outline=(255, 255, 255))


def _scaled(rgb: np.ndarray) -> Any:
    """Scales colours (height, width, 3) uint8 to a PIL image of 360 by 360 pixels."""
    from PIL import Image

    return Image.fromarray(np.ascontiguousarray(rgb)).resize((SIDE_PX, SIDE_PX), Image.Resampling.NEAREST)


def plan_sheet_image(
    scenes: EpisodeConfig, split: Split, seed: int, count: int = 20, columns: int = 4, plans: Sequence[Plan] = ()
) -> np.ndarray:
    """Draws an overview of the first plans of a split, each with a smooth and an abstract sketch.

    Args:
        scenes: Distribution of the plans.
        split: Split of episodes.
        seed: Seed of the plans and sketches.
        count: Number of plans.
        columns: Plans per row.
        plans: Imported plans, `count` or more; empty generates them.

    Returns:
        The image (height, width, 3) uint8.
    """
    from PIL import Image, ImageDraw

    side, gap = 150, 8
    first = replace(scenes, plans=count, goals=1, starts=1, sketch_px=PAGE_PX)
    sets = {
        level: generate_episodes(replace(first, sketch=level), split, seed, plans=plans[:count])
        for level in SHEET_LEVELS
    }
    episodes = sets["smooth"]
    rows = -(-count // columns)
    sheet = Image.new("RGB", (columns * (3 * (side + gap) + 2 * gap), rows * (side + 2 * gap) + 20), (255, 255, 255))
    draw = ImageDraw.Draw(sheet)
    draw.text((gap, 4), "plan with the shortest path, smooth sketch, abstract sketch", fill=(0, 0, 0))
    for number in range(count):
        left = (number % columns) * (3 * (side + gap) + 2 * gap) + gap
        top = (number // columns) * (side + 2 * gap) + 20
        above = plan_image(episodes.plan_cells(number))
        scale = side / max(above.shape[:2])
        plan = Image.fromarray(above).resize((round(above.shape[1] * scale), round(above.shape[0] * scale)))
        corners = [tuple(point / CELL_M * scale) for point in episodes.path_corners(number)]
        ImageDraw.Draw(plan).line(corners, fill=PATH_RGB, width=2)
        sheet.paste(plan, (left, top))
        for column, level in enumerate(SHEET_LEVELS, 1):
            page = Image.fromarray(sets[level].sketch[number].numpy().transpose(1, 2, 0))
            x = left + column * (side + gap)
            sheet.paste(page.resize((side, side), Image.Resampling.LANCZOS), (x, top))
            draw.rectangle((x, top, x + side - 1, top + side - 1), outline=(200, 200, 200))
    return np.asarray(sheet)
