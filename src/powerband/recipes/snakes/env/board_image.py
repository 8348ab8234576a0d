"""Board images: draws a board of 3v3 snakes with the scores of both teams."""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from powerband.recipes.snakes.env.board import SnakesState, dump_board
from powerband.recipes.snakes.env.rules.game import COLS, MAX_STEPS, ROWS, TEAM

Cell = tuple[int, int]
Colour = tuple[int, int, int]

SHADES: list[Colour] = [(24, 92, 173), (52, 133, 220), (112, 178, 245), (190, 63, 26), (229, 103, 48), (247, 155, 98)]
PAPER, GRID, TRAY, INK, FAINT = (250, 248, 243), (234, 230, 220), (38, 43, 53), (255, 255, 255), (150, 158, 172)
BEAN, SHINE, STEM = (94, 158, 66), (163, 208, 131), (120, 92, 58)
STEPS = {0: (-1, 0), 1: (1, 0), 2: (0, -1), 3: (0, 1)}
HEADER = 2
"""Height of the header in cells."""

SMOOTH = 2
"""The board is drawn larger by this factor; scaling the image down makes its edges smooth."""


def draw_board(
    state: SnakesState,
    board: int = 0,
    *,
    cell: int = 32,
    names: tuple[str, str] = ("team A", "team B"),
    caption: str = "",
) -> np.ndarray:
    """Draws one board, with a header that shows the scores of both teams.

    Args:
        state: State of the boards, on any device.
        board: Index of the board.
        cell: Pixels of a cell, an even number from 12, because videos need even sides.
        names: Names of the teams in the header.
        caption: Text in the middle of the header, such as the result.

    Returns:
        RGB image (12 * cell, 20 * cell, 3) uint8.

    Raises:
        ValueError: `cell` is below 12 or odd, or the board does not exist.
    """
    if cell < 12 or cell % 2:
        raise ValueError(f"cell={cell} pixels is invalid. Pass an even number of at least 12.")
    if not 0 <= board < state.num_boards:
        raise ValueError(f"Board {board} does not exist. Pass an index in 0..{state.num_boards - 1}.")
    position = dump_board(state, board)
    size = cell * SMOOTH
    field = Image.new("RGB", (COLS * size, ROWS * size), PAPER)
    pen = ImageDraw.Draw(field)
    for line in range(1, COLS):
        pen.line([(line * size, 0), (line * size, ROWS * size)], fill=GRID, width=SMOOTH)
    for line in range(1, ROWS):
        pen.line([(0, line * size), (COLS * size, line * size)], fill=GRID, width=SMOOTH)
    for bean in position["beans"]:
        _draw_bean(pen, bean, size)
    for i, body in enumerate(position["bodies"]):
        if body:
            _draw_body(pen, body, SHADES[i], size)
    for i, body in enumerate(position["bodies"]):
        if body:
            _draw_head(pen, body[0], position["directions"][i], SHADES[i], size)
    image = Image.new("RGB", (COLS * size, (ROWS + HEADER) * size), TRAY)
    image.paste(field, (0, HEADER * size))
    _draw_header(ImageDraw.Draw(image), position, size, names, caption)
    return np.asarray(image.reduce(SMOOTH))


def _centre(cell: Cell, size: int) -> tuple[float, float]:
    return (cell[1] + 0.5) * size, (cell[0] + 0.5) * size


def _disc(pen: ImageDraw.ImageDraw, centre: tuple[float, float], radius: float, fill: Colour) -> None:
    x, y = centre
    pen.ellipse([x - radius, y - radius, x + radius, y + radius], fill=fill)


def _draw_bean(pen: ImageDraw.ImageDraw, cell: Cell, size: int) -> None:
    x, y = _centre(cell, size)
    pen.line([(x, y - 0.2 * size), (x + 0.1 * size, y - 0.36 * size)], fill=STEM, width=max(1, size // 14))
    _disc(pen, (x, y + 0.02 * size), 0.26 * size, BEAN)
    _disc(pen, (x - 0.09 * size, y - 0.08 * size), 0.07 * size, SHINE)


def _draw_body(pen: ImageDraw.ImageDraw, body: list[Cell], colour: Colour, size: int) -> None:
    """Draws a snake as a band through the cells `body`, head first, which becomes thinner towards the tail.

    The band continues over the edges of the board. `size`: pixels of a cell.
    """
    radii = [size * (0.4 - 0.2 * k / max(6, len(body) - 1)) for k in range(len(body))]
    for k, cell in enumerate(body):
        _disc(pen, _centre(cell, size), radii[k], colour)
    for k in range(len(body) - 1):
        (row, col), (next_row, next_col) = body[k], body[k + 1]
        down = (next_row - row + ROWS // 2) % ROWS - ROWS // 2
        right = (next_col - col + COLS // 2) % COLS - COLS // 2
        length = abs(down) + abs(right)
        for cell, sign, radius in ((body[k], 1, radii[k]), (body[k + 1], -1, radii[k + 1])):  # half way from each
            x, y = _centre(cell, size)
            to_x, to_y = x + sign * right * size / 2, y + sign * down * size / 2
            middle = (radii[k] + radii[k + 1]) / 2
            aside_x, aside_y = down / length, right / length
            pen.polygon(
                [
                    (x - aside_x * radius, y - aside_y * radius),
                    (x + aside_x * radius, y + aside_y * radius),
                    (to_x + aside_x * middle, to_y + aside_y * middle),
                    (to_x - aside_x * middle, to_y - aside_y * middle),
                ],
                fill=colour,
            )


def _draw_head(pen: ImageDraw.ImageDraw, cell: Cell, direction: int, colour: Colour, size: int) -> None:
    x, y = _centre(cell, size)
    down, right = STEPS[direction]
    _disc(pen, (x, y), 0.47 * size, PAPER)
    _disc(pen, (x, y), 0.43 * size, colour)
    for side in (-1, 1):
        eye = (x + size * (0.13 * right + 0.18 * side * down), y + size * (0.13 * down + 0.18 * side * right))
        _disc(pen, eye, 0.13 * size, INK)
        _disc(pen, (eye[0] + 0.05 * size * right, eye[1] + 0.05 * size * down), 0.065 * size, TRAY)


def _draw_header(pen: ImageDraw.ImageDraw, position: dict, cell: int, names: tuple[str, str], caption: str) -> None:
    width, middle = COLS * cell, cell
    large, small = ImageFont.load_default(0.8 * cell), ImageFont.load_default(0.46 * cell)
    for team in range(2):
        members = range(team * TEAM, team * TEAM + TEAM)
        left = team == 0
        x = 0.5 * cell if left else width - 0.5 * cell
        sign = 1 if left else -1
        score = str(sum(position["scores"][i] for i in members))
        for k, i in enumerate(members if left else reversed(members)):
            at = x + sign * (0.22 * cell + 0.62 * k * cell)
            _disc(pen, (at, middle), 0.24 * cell, SHADES[i])
        x += sign * 2.1 * cell
        pen.text((x, middle), score, font=large, fill=INK, anchor="lm" if left else "rm")
        x += sign * (pen.textlength(score, font=large) + 0.35 * cell)
        pen.text((x, middle + 0.06 * cell), names[team], font=small, fill=FAINT, anchor="lm" if left else "rm")
    step = f"{position['step_count']} / {MAX_STEPS}"
    if caption:
        pen.text((width / 2, 0.68 * cell), caption, font=small, fill=INK, anchor="mm")
        pen.text((width / 2, 1.34 * cell), step, font=small, fill=FAINT, anchor="mm")
    else:
        pen.text((width / 2, middle), step, font=small, fill=FAINT, anchor="mm")
    done = position["step_count"] / MAX_STEPS
    pen.rectangle([0, 2 * cell - max(2, cell // 10), width * done, 2 * cell], fill=BEAN)
