"""Pictures of an episode: the plan from above with way and path, what the agent sees, and the sketch it was given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor

from .env import SketchNavEnv
from .episodes import UNIT_M, Scenes, Split, draw_episodes
from .sketch import PAGE
from .surfaces import CELL_M, colours, heights
from .world import FAR_M, NEAR_M

SIDE = 360
GAP = 12


@dataclass(frozen=True)
class Frame:
    """One moment of one agent, on the host.

    Attributes:
        cells: (H, W) uint8 codes of the plan.
        sketch: (s, s, 3) uint8. rgb: (S, S, 3) uint8. depth: (S, S) float32, metres.
        way: (L, 2) the shortest way. path: (k, 2) where the agent has been. goal: (2,). All in metres.
        heading: Radians, clockwise from the x axis.
        said: A line of figures.
        believed: (k, 2) in 0..1: where on the sketch the agent took itself to be; k = 0 where it does not say.
    """

    cells: np.ndarray
    sketch: np.ndarray
    rgb: np.ndarray
    depth: np.ndarray
    way: np.ndarray
    path: np.ndarray
    goal: np.ndarray
    heading: float
    said: str
    believed: np.ndarray


def film_episode(
    env: SketchNavEnv,
    act: Callable[[SketchNavEnv, Any, Tensor | None], tuple[Tensor, Tensor | None]],
    carry: Tensor | None,
    belief: Callable[[Any], Tensor | None] = lambda obs: None,
) -> list[Frame]:
    """Walks the episode that row 0 begins with, to its end.

    Args:
        env: One agent.
        act: (agents, observations, carry) -> (actions, carry).
        carry: The first one.
        belief: Observations -> (1, 2) where on the sketch the agent takes itself to be, None where it does not say.

    Returns:
        A frame before each action, and one after the last.
    """
    obs, frames, path, trail = env.observe(), [], [], []
    episode = int(env.agents.episode[0])
    cells, way = env.episodes.cells_of(int(env.episodes.plan[episode])), env.episodes.way_of(episode)
    goal = env.episodes.target[episode].cpu().numpy() * UNIT_M
    sketch = env.episodes.sketch[episode].cpu().numpy().transpose(1, 2, 0)

    def frame(said: str) -> Frame:
        rgb, depth = env.view_m()
        path.append(env.agents.at[0].cpu().numpy() * UNIT_M)
        seen = rgb[0].cpu().numpy().transpose(1, 2, 0), depth[0, 0].cpu().numpy()
        heading = 2 * np.pi * int(env.agents.heading[0]) / 36
        if (at := belief(obs)) is not None:
            trail.append(at[0].cpu().numpy())
        believed = np.array(trail).reshape(-1, 2)
        return Frame(cells, sketch, *seen, way, np.array(path), goal, heading, said, believed)

    while True:
        frames.append(frame(f"step {int(env.agents.made[0])}, {float(env.agents.distance[0]):.1f} m to go"))
        action, carry = act(env, obs, carry)
        step = env.step(action)
        if bool(step.ended[0]):
            figures = {name: float(value[0]) for name, value in step.episode.items()}
            end = "success" if figures["success"] else "failure"
            last = frames[-1]
            said = f"{end}: SPL {figures['spl']:.2f}, {figures['distance_to_goal']:.1f} m to go, {len(frames)} steps"
            return [*frames, Frame(**{**vars(last), "said": said})]
        obs = step.obs


def plan_picture(cells: np.ndarray) -> np.ndarray:
    """(H, W, 3) uint8: a plan from above, a pixel a cell; walls dark, furniture and floors in their colours."""
    picture = colours()[cells]
    picture[heights()[cells] >= 2] = (45, 45, 45)
    return picture.astype(np.uint8)


def draw_episode(frame: Frame) -> np.ndarray:
    """(H, W, 3) uint8 RGB: sketch, plan with way and path, camera, depth, side by side."""
    from PIL import Image, ImageDraw

    above = plan_picture(frame.cells)
    scale = SIDE / max(above.shape[:2])
    size = tuple(round(length * scale) for length in (above.shape[1], above.shape[0]))
    top = Image.new("RGB", (SIDE, SIDE), (255, 255, 255))
    top.paste(Image.fromarray(above).resize(size, Image.Resampling.NEAREST))
    draw = ImageDraw.Draw(top)

    def put(points: np.ndarray) -> list[tuple[float, float]]:
        return [tuple(point / CELL_M * scale) for point in np.atleast_2d(points)]

    draw.line(put(frame.way), fill=(225, 40, 40), width=2)
    if len(frame.path) > 1:
        draw.line(put(frame.path), fill=(20, 120, 255), width=3)
    for point, colour in ((frame.way[0], (30, 80, 230)), (frame.goal, (150, 40, 190))):
        x, y = put(point)[0]
        draw.ellipse((x - 5, y - 5, x + 5, y + 5), fill=colour)
    _point(draw, put(frame.path[-1])[0], frame.heading)
    page = Image.fromarray(_scaled(frame.sketch))
    if len(frame.believed):
        trail, on_page = [tuple(at) for at in frame.believed * SIDE], ImageDraw.Draw(page)
        if len(trail) > 1:
            on_page.line(trail, fill=(20, 120, 255), width=2)
        _point(on_page, trail[-1], frame.heading)
    grey = np.clip((frame.depth - NEAR_M) / (FAR_M - NEAR_M), 0, 1)
    depth = np.repeat((255 * (1 - grey)).astype(np.uint8)[..., None], 3, -1)
    parts = [np.asarray(page), np.asarray(top), _scaled(frame.rgb), _scaled(depth)]
    canvas = Image.new("RGB", (4 * SIDE + 5 * GAP, SIDE + 2 * GAP + 24), (255, 255, 255))
    for number, part in enumerate(parts):
        canvas.paste(Image.fromarray(part), (GAP + number * (SIDE + GAP), GAP + 22))
    titles = (
        "sketch" + ", and where it takes itself to be" * bool(len(frame.believed)),
        f"plan: {frame.said}",
        "camera",
        f"depth, {NEAR_M:g} to {FAR_M:g} m",
    )
    draw = ImageDraw.Draw(canvas)
    for number, title in enumerate(titles):
        draw.text((GAP + number * (SIDE + GAP), 10), title, fill=(0, 0, 0))
    return np.asarray(canvas)


def _point(draw: Any, at: tuple[float, float], heading: float) -> None:
    """Draws an agent as an arrow head."""
    ahead = np.array([np.cos(heading), np.sin(heading)])
    aside = np.array([-ahead[1], ahead[0]])
    nose = [tuple(np.array(at) + step) for step in (9 * ahead, 6 * aside - 5 * ahead, -6 * aside - 5 * ahead)]
    draw.polygon(nose, fill=(20, 120, 255), outline=(255, 255, 255))


def _scaled(picture: np.ndarray) -> np.ndarray:
    from PIL import Image

    return np.asarray(Image.fromarray(np.ascontiguousarray(picture)).resize((SIDE, SIDE), Image.Resampling.NEAREST))


def draw_sheet(scenes: Scenes, split: Split, seed: int, count: int = 20, columns: int = 4) -> np.ndarray:
    """(H, W, 3) uint8 RGB: the first `count` plans of a split, each beside its smooth and its abstract sketch."""
    from PIL import Image, ImageDraw

    small, gap = 150, 8
    first = replace(scenes, plans=count, goals=1, starts=1, sketch_px=PAGE)
    levels = {level: draw_episodes(replace(first, sketch=level), split, seed) for level in ("smooth", "abstract")}
    rows = -(-count // columns)
    sheet = Image.new("RGB", (columns * (3 * (small + gap) + 2 * gap), rows * (small + 2 * gap) + 20), (255, 255, 255))
    pen = ImageDraw.Draw(sheet)
    pen.text((gap, 4), "plan with the shortest way, smooth sketch, abstract sketch", fill=(0, 0, 0))
    for number in range(count):
        left = (number % columns) * (3 * (small + gap) + 2 * gap) + gap
        top = (number // columns) * (small + 2 * gap) + 20
        drawn = levels["smooth"]
        above = plan_picture(drawn.cells_of(number))
        scale = small / max(above.shape[:2])
        plan = Image.fromarray(above).resize((round(above.shape[1] * scale), round(above.shape[0] * scale)))
        way = [tuple(point / CELL_M * scale) for point in drawn.way_of(number)]
        ImageDraw.Draw(plan).line(way, fill=(225, 40, 40), width=2)
        sheet.paste(plan, (left, top))
        for place, level in enumerate(("smooth", "abstract"), 1):
            page = Image.fromarray(levels[level].sketch[number].numpy().transpose(1, 2, 0))
            at = left + place * (small + gap)
            sheet.paste(page.resize((small, small), Image.Resampling.LANCZOS), (at, top))
            pen.rectangle((at, top, at + small - 1, top + small - 1), outline=(200, 200, 200))
    return np.asarray(sheet)
