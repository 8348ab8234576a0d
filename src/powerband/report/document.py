"""HTML document of a report: puts header, navigation, sections, style and script into one file."""

from __future__ import annotations

import html
from importlib.resources import files
from pathlib import Path

from powerband.core.errors import ConfigError


def document(title: str, head: str, sections: dict[str, str]) -> str:
    """Assembles a complete HTML page of a report and returns its text.

    Args:
        title: Title and heading, plain text.
        head: HTML below the heading.
        sections: Heading -> HTML of a section; empty sections are omitted.
    """
    shown = {name: body for name, body in sections.items() if body}
    anchors = {name: name.lower().replace(" ", "-") for name in shown}
    nav = "".join(f"<a href='#{anchor}'>{html.escape(name)}</a>" for name, anchor in anchors.items())
    body = "".join(
        f"<section id='{anchors[name]}'><h2>{html.escape(name)}</h2>{content}</section>"
        for name, content in shown.items()
    )
    package = files("powerband.report")
    style, script = (package.joinpath(name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    return (
        "<!doctype html><html lang=en><head><meta charset=utf-8>"
        "<meta name=viewport content='width=device-width,initial-scale=1'>"
        f"<title>{html.escape(title)}</title><style>{style}</style></head><body><main>"
        f"<header><button class=theme>light / dark</button><h1>{html.escape(title)}</h1>{head}<nav>{nav}</nav></header>"
        f"{body}</main><script>{script}</script></body></html>"
    )


def save_page(path: Path, page: str, option: str = "") -> Path:
    """Writes a page and creates its folder.

    Args:
        path: File of the page.
        page: HTML.
        option: Option of the user that names the file, such as ``to=FILE.html``; "" if the command chooses the name.

    Returns:
        `path`.

    Raises:
        ConfigError: The file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page, encoding="utf-8", errors="replace")  # names of files may be no UTF-8
    except OSError as error:
        fix = f"Name another file with {option}." if option else "Free some space, or correct the permissions."
        raise ConfigError(f"{path} cannot be written ({error.strerror}). {fix}") from error
    return path
