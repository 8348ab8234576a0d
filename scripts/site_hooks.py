"""Hooks of the documentation site: what differs between a page on the site and the same page in the repository."""

from __future__ import annotations

import re
from typing import Any

SIBLING = re.compile(r"^\[(?:English|中文)\]\([^)]+\)\n+", re.MULTILINE)
"""The link from a page to its translation; the site has a language menu instead."""


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Removes the first link to the translation."""
    return SIBLING.sub("", markdown, count=1)
