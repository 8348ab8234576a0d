"""Composes ``docs/images/tasks.png``, the picture of the five tasks, from pictures in ``docs/pictures``.

python scripts/tasks_picture.py
"""

from __future__ import annotations

from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

DOCS = Path(__file__).parents[1] / "docs"
SIDE, GAP, CAPTION = 300, 12, 34
"""Pixels: the side of a tile, the space between tiles, the height of a caption."""

TILES = (
    ("snakes-game.png", (130, 64, 450, 384), "snakes: 3v3 self-play"),
    ("uav-mission.png", (447, 68, 725, 346), "uav: map a hidden field"),
    ("metaworld-door-open.png", (14, 26, 244, 256), "metaworld: manipulation"),
    ("sketchnav-episode.png", (32, 48, 352, 388), "sketchnav: follow a sketch"),
    ("libero-drawer.png", (256, 0, 384, 128), "libero: follow a sentence"),
)
"""(picture, the part of it that is shown, caption) of each task, left to right."""


def main() -> None:
    width = len(TILES) * SIDE + (len(TILES) + 1) * GAP
    sheet = Image.new("RGB", (width, SIDE + CAPTION + 2 * GAP), "white")
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(18)
    for index, (name, box, caption) in enumerate(TILES):
        left = GAP + index * (SIDE + GAP)
        picture = Image.open(DOCS / "pictures" / name).convert("RGB").crop(box)
        sheet.paste(picture.resize((SIDE, SIDE), Image.Resampling.LANCZOS), (left, GAP))
        draw.rectangle((left, GAP, left + SIDE - 1, GAP + SIDE - 1), outline=(190, 190, 190))
        start = left + (SIDE - draw.textlength(caption, font)) / 2
        draw.text((start, GAP + SIDE + 8), caption, (40, 40, 40), font)
    sheet.save(DOCS / "images" / "tasks.png", optimize=True)


if __name__ == "__main__":
    main()
