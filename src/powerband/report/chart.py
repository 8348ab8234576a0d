"""Charts: draws lines and stacked areas with axes as inline SVG, in the colours of the report page."""

from __future__ import annotations

import html
import json
import math
from dataclasses import dataclass, field

WIDTH, HEIGHT = 400, 190
LEFT, RIGHT, TOP, BOTTOM = 46, 10, 8, 24
SHORT_UNITS = ("s", "ms")
"""Units that follow each number of an x axis; for other units the axis has plain numbers."""
MAX_MARKERS = 12
"""Largest number of points of a line that are drawn as circles."""
SMALLEST = 1e-150
"""Smallest length of an axis; steps of a shorter one are no exact numbers."""
COLOURS = 14
"""Number of colours of the page's palette: ``--c0`` to ``--c13``; the last one is grey."""


@dataclass(frozen=True)
class Line:
    """One line of a chart.

    Attributes:
        name: Name in the legend and under the pointer; empty if the chart has one line only.
        group: Name in the legend of several lines that belong together; empty uses `name`.
        x, y: Coordinates of the points, in the order of x.
        raw: Values of `y` before smoothing, drawn faint; empty for none.
        low, high: Ends of the interval of each point, drawn as a band; empty for none.
        colour: Index into the page's palette.
    """

    name: str
    x: list[float]
    y: list[float]
    raw: list[float] = field(default_factory=list)
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)
    colour: int = 0
    group: str = ""


def line_chart(
    title: str, lines: list[Line], unit: str = "env steps", percent: bool = False, zero: bool = False
) -> str:
    """Draws lines over a common x axis.

    Args:
        title: Title of the chart.
        lines: Lines; those without points are omitted.
        unit: Unit of the x axis.
        percent: Whether the values are shares, 0 to 1, shown in percent.
        zero: Whether the y axis starts at 0.

    Returns:
        An HTML ``figure``; empty if no line has points.
    """
    lines = [line for line in lines if line.x]
    xs = [x for line in lines for x in line.x]
    ys = [y for line in lines for y in (*line.y, *line.raw, *line.low, *line.high)]
    if not xs:
        return ""
    area = PlotArea.enclosing(xs, ys, zero=zero or percent)
    parts = [area.axes(percent, unit)]
    for line in lines:
        stroke = f"stroke='var(--c{line.colour})'"
        if line.raw:
            parts.append(f"<polyline class=raw {stroke} points='{area.points(line.x, line.raw)}'/>")
        if line.low:
            band = area.points(line.x + line.x[::-1], line.low + line.high[::-1])
            parts.append(f"<polygon class=band fill='var(--c{line.colour})' points='{band}'/>")
        for x, y in zip(line.x, line.y, strict=True) if len(line.x) <= MAX_MARKERS else ():
            parts.append(f"<circle cx='{area.x(x):.1f}' cy='{area.y(y):.1f}' r=2.6 fill='var(--c{line.colour})'/>")
        parts.append(f"<polyline class=smooth {stroke} points='{area.points(line.x, line.y)}'/>")
    names = dict.fromkeys((line.group or line.name, line.colour) for line in lines)
    legend = legend_of(list(names)) if lines[0].name else ""
    last = number(lines[0].y[-1], percent) if len(lines) == 1 else ""
    return _figure(title, last, area.svg(parts, lines, unit, percent), legend)


def area_chart(title: str, edges: list[float], layers: list[Line], unit: str) -> str:
    """Draws shares stacked to 100 %, constant on each interval.

    Args:
        title: Title of the chart.
        edges: Ends of the intervals on the x axis.
        layers: Shares to stack, the lowest first; y[i] of a layer holds between edges[i] and edges[i + 1].
        unit: Unit of the x axis.

    Returns:
        An HTML ``figure``.
    """
    area = PlotArea(edges[0], edges[-1], 0.0, 1.0, WIDTH * 1.9, HEIGHT * 1.15)
    parts, below = [], [0.0] * (len(edges) - 1)
    for layer in layers:
        above = [min(low + share, 1.0) for low, share in zip(below, layer.y, strict=True)]
        path = _steps(area, edges, above) + _steps(area, edges, below)[::-1]
        corners = " ".join(f"{x:.1f},{y:.1f}" for x, y in path)
        parts.append(
            f"<polygon class=edge fill='var(--c{layer.colour})' points='{corners}'><title>{html.escape(layer.name)}"
            f"</title></polygon>"
        )
        below = above
    parts.append(area.axes(True, unit, grid=False))
    legend = legend_of([(layer.name, layer.colour) for layer in layers])
    return _figure(title, "", area.svg(parts, layers, unit, True), legend)


@dataclass(frozen=True)
class PlotArea:
    """Area of a chart, which maps values to coordinates of an SVG drawing.

    Attributes:
        low, high: Smallest and largest value on the x axis.
        bottom, top: Smallest and largest value on the y axis.
        width, height: Size of the drawing, in units of its viewBox.
    """

    low: float
    high: float
    bottom: float
    top: float
    width: float = WIDTH
    height: float = HEIGHT

    @classmethod
    def enclosing(cls, xs: list[float], ys: list[float], zero: bool = False) -> PlotArea:
        """Returns an area that contains all points with a margin.

        Args:
            xs: Coordinates on the x axis.
            ys: Values.
            zero: Whether the y axis starts at 0.
        """
        bottom, top = min(ys), max(ys)
        margin = 0.06 * (top - bottom) or 0.05 * abs(top) or 1.0
        low, high = min(xs), max(xs)
        if low == high:  # a single point lies in the middle
            low, high = low - (0.5 * abs(low) or 1.0), high + (0.5 * abs(high) or 1.0)
        return cls(low, high, 0.0 if zero else bottom - margin, top + margin)

    def x(self, value: float) -> float:
        """Returns the horizontal coordinate of `value`."""
        return LEFT + (value - self.low) / ((self.high - self.low) or 1.0) * (self.width - LEFT - RIGHT)

    def y(self, value: float) -> float:
        """Returns the vertical coordinate of `value`, from the top."""
        return TOP + (self.top - value) / ((self.top - self.bottom) or 1.0) * (self.height - TOP - BOTTOM)

    def points(self, xs: list[float], ys: list[float]) -> str:
        """Returns the attribute ``points`` of an SVG polyline through the values `ys` at `xs`."""
        return " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in zip(xs, ys, strict=True))

    def axes(self, percent: bool, unit: str, grid: bool = True) -> str:
        """Returns the axes with their numbers as SVG elements.

        Args:
            percent: Whether the values on the y axis are shares, 0 to 1, shown in percent.
            unit: Unit of the x axis.
            grid: Whether to draw grid lines as well.
        """
        parts = []
        for value in ticks(self.bottom, self.top, 4):
            y = self.y(value)
            line = f"<line class=grid-line x1={LEFT} x2={self.width - RIGHT:g} y1='{y:.1f}' y2='{y:.1f}'/>"
            parts.append(line if grid else "")
            parts.append(f"<text x={LEFT - 6} y='{y + 4:.1f}' text-anchor=end>{number(value, percent)}</text>")
        values = ticks(self.low, self.high, 4 if self.width <= WIDTH else 8)
        y = self.height - BOTTOM + 15
        for value in values:
            label = number(value) + (f" {unit}" if unit in SHORT_UNITS else "")
            anchor = "end" if self.x(value) > self.width - RIGHT - 12 else "middle"
            parts.append(f"<text x='{self.x(value):.1f}' y='{y:g}' text-anchor={anchor}>{label}</text>")
        return "".join(parts)

    def svg(self, parts: list[str], lines: list[Line], unit: str, percent: bool) -> str:
        """Returns the complete SVG drawing. Its points are attached as JSON for the script of the page.

        Args:
            parts: SVG elements of the drawing.
            lines: Lines of the chart.
            unit: Unit of the x axis.
            percent: Whether the values are shares.
        """
        edges = {"left": LEFT, "right": self.width - RIGHT, "width": self.width, "low": self.low, "high": self.high}
        data = [{"name": line.name, "x": line.x, "y": [float(f"{y:.4g}") for y in line.y]} for line in lines]
        points = html.escape(json.dumps({**edges, "unit": unit, "percent": percent, "lines": data}), quote=True)
        ends = f"y1={TOP} y2={self.height - BOTTOM:g}"
        cursor = f"<line class=cursor x1=0 x2=0 {ends} style='visibility:hidden'/>"
        size = f"viewBox='0 0 {self.width:g} {self.height:g}'"
        return f'<svg {size} role=img data-points="{points}">{"".join(parts)}{cursor}</svg>'


def legend_of(names: list[tuple[str, int]]) -> str:
    """Returns the legend of a chart as HTML.

    Args:
        names: Pairs of name and index into the palette of the page.
    """
    items = (f"<span><i style='background:var(--c{colour})'></i>{html.escape(name)}</span>" for name, colour in names)
    return f"<div class=legend>{''.join(items)}</div>"


def ticks(low: float, high: float, count: int) -> list[float]:
    """Returns about `count` round numbers between `low` and `high`."""
    if not high - low > SMALLEST:
        return [low]
    rough = (high - low) / count
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(size * factor for factor in (1, 2, 2.5, 5, 10) if size * factor >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(index * step, 12) for index in range(first, math.floor(high / step + 1e-9) + 1)]


def number(value: float, percent: bool = False) -> str:
    """Formats a number for display, such as 4.57 or 1.2M.

    Args:
        value: The number.
        percent: Whether it is a share, 0 to 1, shown in percent.
    """
    if percent:
        return f"{100 * value:.3g} %"
    for limit, suffix in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            return f"{value / (1e3 if suffix == 'k' else limit):.4g}{suffix}"
    return f"{value:.4g}"


def _figure(title: str, last: str, svg: str, legend: str) -> str:
    head = f"<figcaption><span>{html.escape(title)}</span><span class=now>{html.escape(last)}</span></figcaption>"
    return f"<figure>{head}{legend}{svg}</figure>"


def _steps(area: PlotArea, edges: list[float], values: list[float]) -> list[tuple[float, float]]:
    """Returns the corners (x, y) of a step function, from left to right, in coordinates of the drawing."""
    corners = []
    for index, value in enumerate(values):
        corners += [(area.x(edges[index]), area.y(value)), (area.x(edges[index + 1]), area.y(value))]
    return corners
