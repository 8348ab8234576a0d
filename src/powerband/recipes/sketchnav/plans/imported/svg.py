"""SVG: draws the shapes of an SVG file as grey values. Scripts do not run, and references are not followed.

Lines, rectangles, polygons, circles, ellipses and paths are drawn in the order of the file, with their stroke and fill.
Texts are left out. Elements that refer to other elements or files, such as ``image`` and ``use``, are refused, and so
is an ``svg`` inside another one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.parsers import expat

import numpy as np

from powerband.core.errors import ConfigError
from powerband.recipes.sketchnav.plans.imported.pictures import MAX_SIDE_PX
from powerband.recipes.sketchnav.plans.imported.svg_shapes import (
    MAX_POINTS,
    ellipse_points,
    numbers,
    path_lines,
    transform_matrix,
)
from powerband.recipes.sketchnav.plans.imported.svg_styles import INHERITED, StyleSheet, hides, opacity

MAX_SVG_BYTES = 20 * 2**20
MAX_DEPTH = 200
"""Largest number of nested elements."""
SKIPPED = {"script", "style", "text", "title", "desc", "metadata", "defs", "symbol", "clipPath", "mask", "pattern"}
SKIPPED |= {"marker", "linearGradient", "radialGradient", "filter", "animate", "animateTransform", "set", "namedview"}
SKIPPED |= {"flowRoot"}  # a text of Inkscape
"""Elements that are not drawn, with all that they contain."""
REFERENCES = {"image", "use", "foreignObject", "iframe", "a"}
"""Elements that show other content; `a` may contain shapes, and is drawn without its reference."""
LEAST_OPACITY = 0.5
"""Opacity from which a fill or a line is drawn, as if it were opaque. Lighter ones, such as shaded rooms, are none."""
NAMED = {"white": 255, "none": -1, "transparent": -1, "currentcolor": 0, "lightgray": 211, "lightgrey": 211}


def read_svg(path: Path, scale: float, pixel_m: float) -> np.ndarray:
    """Draws an SVG file as grey values (height, width) uint8, on white.

    Args:
        path: SVG file.
        scale: Metres per unit of the drawing (its ``viewBox``).
        pixel_m: Side of a pixel of the result in metres.

    Raises:
        ConfigError: The file is not valid, refers to other content, or is too large.
    """
    try:
        size = path.stat().st_size
        if size > MAX_SVG_BYTES:
            raise ConfigError(f"{path} has {size:,} bytes; the limit is {MAX_SVG_BYTES:,}. Simplify the drawing.")
        reader = _Reader(path, scale / pixel_m)
        with np.errstate(over="ignore", invalid="ignore"):  # the reader checks the results
            reader.parse(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}. Name an SVG file.") from None
    except (expat.ExpatError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{path} is not a valid SVG drawing: {error}. Save it as plain SVG.") from None
    if reader.image is None:
        raise ConfigError(f"{path} has no svg element. Save it as plain SVG.")
    return np.asarray(reader.image)


class _Reader:
    """Draws the elements while the file is parsed.

    Args:
        path: File, for messages.
        pixels: Pixels per unit of the drawing.
    """

    def __init__(self, path: Path, pixels: float) -> None:
        self.path, self.pixels = path, pixels
        self.image: Any = None
        self._draw: Any = None
        self._stack: list[tuple[np.ndarray, dict[str, str]]] = []
        self._skipped = self._points = 0
        self._sheet = StyleSheet()
        self._css: list[str] | None = None

    def parse(self, content: bytes) -> None:
        """Parses the file. A document type is refused, because it can define entities."""
        parser = expat.ParserCreate(namespace_separator=" ")
        parser.StartElementHandler = self._begin
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._characters
        parser.EntityDeclHandler = self._refuse_entity
        parser.SetParamEntityParsing(expat.XML_PARAM_ENTITY_PARSING_NEVER)
        parser.Parse(content, True)

    def _refuse_entity(self, name: str, *_: Any) -> None:
        raise ConfigError(f"{self.path} defines the entity {name!r}. Save it as plain SVG without entities.")

    def _characters(self, text: str) -> None:
        if self._css is not None:
            self._css.append(text)

    def _begin(self, name: str, attributes: dict[str, str]) -> None:
        tag = name.rsplit(" ", 1)[-1]
        attributes = {key.rsplit(" ", 1)[-1]: value for key, value in attributes.items()}
        if self._skipped or tag in SKIPPED:
            self._skipped += 1
            if tag == "style":
                self._css = []
            return
        if tag in REFERENCES and tag != "a":
            raise ConfigError(
                f"{self.path} has an element <{tag}>, which refers to other content. References are never followed: "
                f"convert all objects to paths, and save as plain SVG."
            )
        if len(self._stack) > MAX_DEPTH:
            raise ConfigError(f"{self.path} has more than {MAX_DEPTH} nested elements. Save it as plain SVG.")
        matrix, style = self._stack[-1] if self._stack else (np.eye(3), {})
        if (tag == "svg") != (self.image is None):
            wrong = "has an <svg> inside another one" if self.image else f"begins with <{tag}>, not with <svg>"
            raise ConfigError(f"{self.path} {wrong}. Convert all objects to paths, and save as plain SVG.")
        own = self._sheet.properties(tag, attributes)
        whole = opacity(style.get("opacity", "1")) * opacity(own.get("opacity", "1"))  # applies to all that it contains
        style = style | {key: value for key, value in own.items() if key in INHERITED} | {"opacity": str(whole)}
        if tag == "svg":
            matrix = self._open(attributes)
        if hides(own):
            self._skipped += 1
            return
        if tag != "svg":
            matrix = matrix @ transform_matrix(attributes.get("transform", ""))
        self._stack.append((matrix, style))
        if style.get("visibility") not in ("hidden", "collapse"):
            self._shape(tag, attributes, matrix, style)

    def _end(self, name: str) -> None:
        if not self._skipped:
            self._stack.pop()
            return
        self._skipped -= 1
        if self._css is not None and name.rsplit(" ", 1)[-1] == "style":
            if self._sheet.add("".join(self._css)) and self._points:
                raise ConfigError(f"{self.path} has a <style> after its first shape. Move it to the beginning.")
            self._css = None

    def _open(self, attributes: dict[str, str]) -> np.ndarray:
        """Creates the image, and returns the matrix (3, 3) from units of the drawing to pixels."""
        from PIL import Image, ImageDraw

        box = numbers(attributes.get("viewBox", ""))
        if len(box) != 4:
            sides = [numbers(attributes.get(name, "")) for name in ("width", "height")]
            if not all(sides):
                raise ConfigError(f"{self.path} has neither a viewBox nor width and height. Save it as plain SVG.")
            box = [0.0, 0.0, sides[0][0], sides[1][0]]
        sides_px = [side * self.pixels for side in box[2:]]
        if not 0.5 < min(sides_px) <= max(sides_px) < MAX_SIDE_PX + 0.5:
            raise ConfigError(
                f"{self.path} is {box[2]:g} x {box[3]:g} units large, which are {sides_px[0]:.6g} x {sides_px[1]:.6g} "
                f"pixels; the limit is 1 to {MAX_SIDE_PX:,}. Check metres_per_pixel, the metres of one unit."
            )
        width, height = map(round, sides_px)
        self.image = Image.new("L", (width, height), 255)
        self._draw = ImageDraw.Draw(self.image)
        scale = np.diag([self.pixels, self.pixels, 1.0])
        return scale @ np.array([[1, 0, -box[0]], [0, 1, -box[1]], [0, 0, 1.0]])

    def _shape(self, tag: str, attributes: dict[str, str], matrix: np.ndarray, style: dict[str, str]) -> None:
        """Draws one element, if it is a shape."""

        def number(name: str) -> float:
            found = numbers(attributes.get(name, "0"))
            return found[0] if found else 0.0

        closed = tag in ("rect", "polygon", "circle", "ellipse")
        if tag == "line":
            lines = [np.array([(number("x1"), number("y1")), (number("x2"), number("y2"))])]
        elif tag == "rect":
            x, y, wide, high = (number(name) for name in ("x", "y", "width", "height"))
            lines = [np.array([(x, y), (x + wide, y), (x + wide, y + high), (x, y + high)])]
        elif tag in ("polyline", "polygon"):
            values = numbers(attributes.get("points", ""))
            lines = [np.array(values[: len(values) // 2 * 2]).reshape(-1, 2)]
        elif tag in ("circle", "ellipse"):
            radii = (number("r"),) * 2 if tag == "circle" else (number("rx"), number("ry"))
            lines = [ellipse_points(number("cx"), number("cy"), *radii)]
        elif tag == "path":
            lines = path_lines(attributes.get("d", ""))
        else:
            return
        self._points += sum(len(line) for line in lines)
        if self._points > MAX_POINTS:
            raise ConfigError(f"{self.path} has more than {MAX_POINTS:,} points. Simplify the drawing.")
        own = opacity(style.get("opacity", "1"))
        fill, stroke = (
            _grey(style.get(name, default), own * opacity(style.get(f"{name}-opacity", "1")))
            for name, default in (("fill", "black"), ("stroke", "none"))
        )
        if not np.isfinite(matrix).all():
            raise ValueError("a transform is too large")
        zoom = float(np.sqrt(abs(np.linalg.det(matrix[:2, :2]))))
        thickness = (numbers(style.get("stroke-width", "1")) or [1.0])[0]
        width = round(min(max(1.0, thickness * zoom), MAX_SIDE_PX))
        outlines = []
        for line in lines:
            places = line @ matrix[:2, :2].T + matrix[:2, 2]
            if np.isnan(places).any():
                raise ValueError("a coordinate is too large")
            outlines.append([(x, y) for x, y in np.clip(places, -1e6, 1e6).tolist()])
        if fill >= 0 and tag != "line":
            self._fill([points for points in outlines if len(points) > 2], fill)
        if stroke >= 0 and thickness > 0:
            for points in outlines:
                around = [*points, points[0]] if closed else points
                if len(around) > 1:
                    self._draw.line(around, fill=stroke, width=width, joint="curve")

    def _fill(self, outlines: list[list[tuple[float, float]]], grey: int) -> None:
        """Fills outlines; what an even number of them contains is a hole, such as the rooms of one path of walls."""
        from PIL import Image, ImageChops, ImageDraw

        if len(outlines) < 2:
            for points in outlines:
                self._draw.polygon(points, fill=grey)
            return
        inside = Image.new("1", self.image.size)
        for points in outlines:
            across, down = zip(*points, strict=True)
            left, top = (max(0, int(min(side))) for side in (across, down))
            right, bottom = (
                min(limit, int(max(side)) + 1) for side, limit in zip((across, down), self.image.size, strict=True)
            )
            if right <= left or bottom <= top:
                continue
            own = Image.new("1", (right - left, bottom - top))
            ImageDraw.Draw(own).polygon([(x - left, y - top) for x, y in points], fill=1)
            box = (left, top, right, bottom)
            inside.paste(ImageChops.logical_xor(inside.crop(box), own), box)
        self.image.paste(grey, (0, 0), inside.convert("L"))


def _grey(colour: str, share: float) -> int:
    """Returns the grey value of a colour of an opacity, or -1 for none. Gradients and unknown names are drawn black."""
    from PIL import ImageColor

    text = colour.lower()
    if share < LEAST_OPACITY:
        return -1
    if text in NAMED or text.startswith("url"):
        return NAMED.get(text, 0)
    try:
        red, green, blue, *alpha = ImageColor.getrgb(text)
    except ValueError:
        return 0
    if alpha and share * alpha[0] / 255 < LEAST_OPACITY:
        return -1
    return round(0.299 * red + 0.587 * green + 0.114 * blue)
