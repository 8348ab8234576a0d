"""Two rooms with a door between them, as a picture, an SVG drawing, a ROS map and a Habitat map."""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

SCALE = 0.05
"""Metres per pixel."""


def two_rooms(door_px: int = 20) -> Image.Image:
    """A house of 8 x 6 m, 2 m inside a white page of 12 x 10 m, whose two rooms share a door."""
    page = Image.new("L", (240, 200), 255)
    draw = ImageDraw.Draw(page)
    draw.rectangle((40, 40, 200, 160), outline=0, width=4)
    middle = 100
    draw.line((120, 40, 120, middle - door_px // 2), fill=0, width=4)
    draw.line((120, middle + door_px // 2, 120, 160), fill=0, width=4)
    return page


SVG = """<?xml version="1.0"?>
<!DOCTYPE svg PUBLIC "-//W3C//DTD SVG 1.1//EN" "http://www.w3.org/Graphics/SVG/1.1/DTD/svg11.dtd">
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 12 10">
  <style>.wall {{ fill: none; stroke: #111; stroke-width: 0.2 }}</style>
  <path fill="#000" d="M2 2h8v6h-8z M2.2 2.2h7.6v5.6h-7.6z"/>
  <g transform="translate(6 2)"><path class="wall" d="M0 0V2.5"/><line class="wall" x1="0" y1="3.5" x2="0" y2="6"/></g>
  <text x="3" y="4">Kitchen</text>{more}
</svg>
"""


def write_plans(folder: Path, *, svg_units: float = 1.0) -> None:
    """Writes house.png, office.svg (units of `svg_units` pixels) and lab.pgm with lab.yaml."""
    folder.mkdir(exist_ok=True)
    two_rooms().save(folder / "house.png")
    shape = SVG.format(more="").replace('viewBox="0 0 12 10"', f'viewBox="0 0 {12 / SCALE:g} {10 / SCALE:g}"')
    scaled = f'<g transform="scale({1 / SCALE:g})">'
    shape = shape.replace("  <path fill", f"  {scaled}<path fill").replace("</svg>", "</g></svg>")
    (folder / "office.svg").write_text(shape)
    write_map(folder, "lab")


def write_map(folder: Path, name: str, **more: object) -> None:
    """Writes the two rooms as NAME.pgm and NAME.yaml, with unknown space outside the house."""
    grey = np.where(np.asarray(two_rooms()) < 128, 0, 254).astype(np.uint8)
    outside = np.full(grey.shape, True)
    outside[40:161, 40:201] = False
    grey[outside] = 205
    Image.fromarray(grey).save(folder / f"{name}.pgm")
    entries = {"image": f"{name}.pgm", "resolution": SCALE, "negate": 0, "occupied_thresh": 0.65, "free_thresh": 0.196}
    lines = [f"{key}: {json.dumps(value)}" for key, value in {**entries, **more}.items()]
    (folder / f"{name}.yaml").write_text("\n".join(lines))


def header_only_png(side: int) -> bytes:
    """A PNG whose header claims `side` x `side` pixels, without any pixel."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")
