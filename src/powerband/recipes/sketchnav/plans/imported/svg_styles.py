"""SVG styles: the properties of an element, from its attributes, the rules of ``<style>``, and its parents."""

from __future__ import annotations

import re
from dataclasses import dataclass

from powerband.recipes.sketchnav.plans.imported.svg_shapes import numbers

INHERITED = ("fill", "stroke", "stroke-width", "visibility", "fill-opacity", "stroke-opacity")
"""Properties that an element takes from its parent if it does not set them."""
STYLES = (*INHERITED, "display", "opacity")
"""Properties that affect the drawing."""
HARMLESS_RULES = ("font-face", "charset", "namespace")
"""Names of at-rules that affect no shape."""
_SELECTOR = re.compile(r"(\*|[\w-]+)?((?:[.#][\w-]+)*)")


@dataclass(frozen=True)
class _Rule:
    """One rule of a style sheet for one selector, such as ``path.wall``.

    Attributes:
        tag: Tag that an element must have; empty for any.
        names: Classes, such as ``.wall``, and identifiers, such as ``#walls``, that it must have.
        properties: Property -> value.
    """

    tag: str
    names: frozenset[str]
    properties: dict[str, str]

    @property
    def specificity(self) -> tuple[int, int, int]:
        """Numbers of identifiers, classes and tags. Of two rules for an element, the larger one is valid."""
        ids = sum(name.startswith("#") for name in self.names)
        return ids, len(self.names) - ids, int(bool(self.tag))


class StyleSheet:
    """Rules of all ``<style>`` elements that were read so far.

    Selectors are a tag, classes and an identifier, such as ``path``, ``.wall``, ``#walls`` or ``path.wall``.
    """

    def __init__(self) -> None:
        self._rules: list[_Rule] = []

    def add(self, text: str) -> bool:
        """Adds the rules of a ``<style>`` element. Rules without a property that affects the drawing are left out.

        Returns:
            True if a rule was added.

        Raises:
            ValueError: A rule affects the drawing and has another kind of selector, or the text has an at-rule, such as
                ``@media`` or ``@import``.
        """
        text, count = re.sub(r"/\*.*?\*/|<!--|-->", " ", text, flags=re.DOTALL), len(self._rules)
        for name in re.findall(r"@([\w-]+)", re.sub(r"\"[^\"]*\"|'[^']*'|\([^)]*\)", "", text)):
            if name.lower() not in HARMLESS_RULES:
                raise ValueError(f"its style has a rule @{name}, which is not supported")
        for selectors, body in re.findall(r"([^{};]+)\{([^}]*)\}", text):
            properties = declarations(body)
            if not properties or selectors.strip().startswith("@"):
                continue
            for each in selectors.split(","):
                found = _SELECTOR.fullmatch(each.strip())
                if not found or not each.strip():
                    raise ValueError(
                        f"its style sets {next(iter(properties))} by the selector {each.strip()!r}; a tag, .class and "
                        f"#id are supported"
                    )
                tag, names = (found[1] or "").removeprefix("*"), re.findall(r"[.#][\w-]+", found[2])
                self._rules.append(_Rule(tag, frozenset(names), properties))
        self._rules.sort(key=lambda rule: rule.specificity)  # keeps the order of equal ones
        return len(self._rules) > count

    def properties(self, tag: str, attributes: dict[str, str]) -> dict[str, str]:
        """Returns the properties that an element sets itself: by attributes, rules, and its attribute ``style``."""
        own = {key: value.strip() for key, value in attributes.items() if key in STYLES}
        names = {f".{each}" for each in attributes.get("class", "").split()} | {f"#{attributes.get('id', '').strip()}"}
        for rule in self._rules:
            if rule.tag in ("", tag) and rule.names <= names:
                own |= rule.properties
        return own | declarations(attributes.get("style", ""))


def declarations(text: str) -> dict[str, str]:
    """Returns the properties in a declaration, such as ``fill:none;stroke:#000``, that affect the drawing."""
    pairs = (each.split(":", 1) for each in text.split(";") if ":" in each)
    found = ((name.strip(), value.split("!")[0].strip()) for name, value in pairs)
    return {name: value for name, value in found if name in STYLES}


def hides(own: dict[str, str]) -> bool:
    """Returns True if the properties of an element hide it and all that it contains, whatever its children set."""
    return own.get("display") == "none" or opacity(own.get("opacity", "1")) == 0


def opacity(text: str) -> float:
    """Returns an opacity in 0..1, such as ``0.5`` or ``50%``; 1 for a text without a number."""
    found = numbers(text)[:1]
    share = found[0] / (100 if text.strip().endswith("%") else 1) if found else 1.0
    return min(max(share, 0.0), 1.0)
