"""SVG shapes: parses the numbers, transforms and paths of an SVG drawing to polylines."""

from __future__ import annotations

import math
import re

import numpy as np

CURVE_POINTS = 12
"""Points along a curve or a quarter of an ellipse."""
MAX_POINTS = 1_000_000
"""Largest number of points of a drawing."""
_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_COMMAND = "[MmLlHhVvCcSsQqTtAaZz]"
_TOKEN = re.compile(rf"{_COMMAND}|{_NUMBER}")
_TOKEN_AT_FLAG = re.compile(rf"{_COMMAND}|[-+]?\d")
"""A flag of an arc is one digit; what follows may stand next to it, as in ``a5 5 0 0110 0``."""
_ARGUMENTS = {"M": 2, "L": 2, "H": 1, "V": 1, "C": 6, "S": 4, "Q": 4, "T": 2, "A": 7, "Z": 0}
"""Numbers that each command of a path takes."""


def numbers(text: str) -> list[float]:
    """Returns all numbers in a text.

    Raises:
        ValueError: A number is too large for 64 bits, such as 1e999.
    """
    return _floats(re.findall(_NUMBER, text))


def _floats(texts: list[str]) -> list[float]:
    found = [float(each) for each in texts]
    if not all(map(math.isfinite, found)):
        raise ValueError("a number is too large")
    return found


def transform_matrix(text: str) -> np.ndarray:
    """Returns the matrix (3, 3) of the attribute ``transform``; unknown functions are refused with ValueError."""
    matrix = np.eye(3)
    for name, arguments in re.findall(r"(\w+)\s*\(([^)]*)\)", text):
        values = numbers(arguments)
        step = np.eye(3)
        if name == "matrix" and len(values) == 6:
            step[:2] = np.array(values).reshape(3, 2).T
        elif name == "translate" and values:
            step[:2, 2] = values[0], values[1] if len(values) > 1 else 0
        elif name == "scale" and values:
            step[0, 0], step[1, 1] = values[0], values[-1]
        elif name == "rotate" and values:
            angle, (x, y) = math.radians(values[0]), values[1:3] or (0.0, 0.0)
            cos, sin = math.cos(angle), math.sin(angle)
            step[:2] = [[cos, -sin, x - cos * x + sin * y], [sin, cos, y - sin * x - cos * y]]
        elif name in ("skewX", "skewY") and values:
            step[(0, 1) if name == "skewX" else (1, 0)] = math.tan(math.radians(values[0]))
        else:
            raise ValueError(f"transform {name}({arguments})")
        matrix = matrix @ step
    return matrix


def ellipse_points(x: float, y: float, radius_x: float, radius_y: float) -> np.ndarray:
    """Returns the points (n, 2) of a closed ellipse."""
    angle = np.linspace(0, 2 * np.pi, 4 * CURVE_POINTS + 1)
    return np.stack([x + radius_x * np.cos(angle), y + radius_y * np.sin(angle)], 1)


def path_lines(text: str) -> list[np.ndarray]:
    """Returns the polylines (n, 2) of the attribute ``d`` of a path.

    Raises:
        ValueError: The text is not a valid path, or has more than a million points.
    """
    tokens = _tokens(text)
    lines: list[list[tuple[float, float]]] = []
    at = np.zeros(2)
    control, before = at, ""
    position, command, count = 0, "", 0
    while position < len(tokens):
        if tokens[position].isalpha():
            command = tokens[position]
            position += 1
        elif command in ("", "Z", "z"):
            raise ValueError("a path has numbers without a command")
        size = _ARGUMENTS[command.upper()]
        values = _floats(tokens[position : position + size])
        if len(values) < size:
            raise ValueError(f"the command {command} of a path lacks numbers")
        position += size
        upper, origin = command.upper(), at if command.islower() else np.zeros(2)
        if upper == "M":
            at = origin + values
            lines.append([(at[0], at[1])])
            command = "l" if command == "m" else "L"
            before = "M"
            continue
        if not lines:
            raise ValueError("a path does not begin with M")
        if upper == "Z":
            at = np.array(lines[-1][0])
            points = at[None]
        elif upper in "HV":
            axis = "HV".index(upper)
            points = at.copy()[None]
            points[0, axis] = origin[axis] + values[0]
        elif upper == "L":
            points = (origin + values)[None]
        elif upper == "A":
            points = _arc(at, values, origin + values[5:])
        else:
            places = np.array(values).reshape(-1, 2) + origin
            if upper in "ST":
                smooth = before in ("CS" if upper == "S" else "QT")
                places = np.concatenate([(2 * at - control if smooth else at)[None], places])
            control = places[-2]
            points = _bezier(np.concatenate([at[None], places]))
        if before == "Z" and upper != "Z":
            lines.append([(at[0], at[1])])
        count += len(points)
        if count > MAX_POINTS:
            raise ValueError(f"a path has more than {MAX_POINTS:,} points")
        lines[-1] += [(x, y) for x, y in points.tolist()]
        at, before = points[-1], upper
    return [np.array(line) for line in lines]


def _tokens(text: str) -> list[str]:
    """Returns the commands and numbers of a path in their order."""
    tokens: list[str] = []
    command, count, position = "", 0, 0
    while found := (_TOKEN_AT_FLAG if command in "Aa" and count % 7 in (3, 4) else _TOKEN).search(text, position):
        token, position = found[0], found.end()
        command, count = (token, 0) if token.isalpha() else (command, count + 1)
        tokens.append(token)
    return tokens


def _bezier(controls: np.ndarray) -> np.ndarray:
    """Returns points (n, 2) of a Bezier curve after its first control point, by de Casteljau's construction."""
    share = np.linspace(0, 1, CURVE_POINTS + 1)[1:, None, None]
    points = np.repeat(controls[None], CURVE_POINTS, 0)
    while points.shape[1] > 1:
        points = (1 - share) * points[:, :-1] + share * points[:, 1:]
    return points[:, 0]


def _arc(start: np.ndarray, values: list[float], end: np.ndarray) -> np.ndarray:
    """Returns points (n, 2) of an elliptical arc after its start, by the equations of the SVG specification (B.2.4)."""
    (radius_x, radius_y), turn = np.abs(values[:2]), math.radians(values[2])
    if not {values[3], values[4]} <= {0.0, 1.0}:
        raise ValueError("a flag of an arc is not 0 or 1")
    large, sweep = bool(values[3]), bool(values[4])
    if radius_x == 0 or radius_y == 0 or np.array_equal(start, end):
        return end[None]
    rotation = np.array([[math.cos(turn), math.sin(turn)], [-math.sin(turn), math.cos(turn)]])
    half = rotation @ (start - end) / 2
    grow = max(1.0, math.hypot(half[0] / radius_x, half[1] / radius_y))
    radii = np.array([radius_x, radius_y]) * grow
    unit = half / radii
    square = float(unit @ unit)
    factor = math.sqrt(max(0.0, (1 - square) / square)) * (-1 if large == sweep else 1)
    centre = factor * np.array([unit[1], -unit[0]])
    first, last = (math.atan2(*(sign * unit - centre)[::-1]) for sign in (1, -1))
    span = (last - first) % (2 * math.pi)
    if not sweep:
        span -= 2 * math.pi
    angle = first + span * np.linspace(0, 1, 2 * CURVE_POINTS + 1)[1:]
    circle = np.stack([np.cos(angle), np.sin(angle)], 1) + centre
    points = (circle * radii) @ rotation + (start + end) / 2
    points[-1] = end
    return points
