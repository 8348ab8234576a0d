"""Rendering: times the images that environments draw, and says whether the CPU draws them."""

from __future__ import annotations

import os
from collections.abc import Callable
from threading import get_ident
from time import perf_counter_ns
from typing import Any

from powerband_attach import record
from powerband_attach.profile.clock import clock
from powerband_attach.profile.timed import like
from powerband_attach.safely import safely

SOFTWARE = {
    "osmesa": "OSMesa",
    "swrast": "swrast (Mesa)",
    "swiftshader": "SwiftShader",
    "vulkan_lvp": "lavapipe, software (Mesa)",
}
"""Part of the name of a loaded library that draws on the CPU -> name of the renderer."""
GPU_FILES = ("/dev/dri/render", "/dev/dri/card", "/dev/nvidia", "/dev/kfd", "/dev/dxg")
"""Starts of the names of device files; a process that draws with a GPU has one of them open."""
NAMED_NS = 20_000_000
"""Drawing time after which the renderer is named; the first image loads its libraries."""

_named: list[str] = []


def timed_render(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function like ``render`` of an environment.

    Only the outermost call counts. It is no span, so the accounts stay as they are.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        if clock.render_depth or get_ident() != clock.thread:
            return fn(*args, **kwargs)
        clock.render_depth = 1
        start = perf_counter_ns()
        try:
            return fn(*args, **kwargs)
        finally:
            clock.render_depth = 0
            clock.render_ns += perf_counter_ns() - start

    return like(fn, call)


@safely
def name_renderer() -> None:
    """Records the renderer of this process once, after it has drawn. The sampler's thread calls it."""
    if not _named and clock.render_ns >= NAMED_NS:
        _named.append(renderer())
        record.write("renderer", name=_named[0])


def forget() -> None:
    """Names the renderer again, in a forked process."""
    _named.clear()


def renderer() -> str:
    """Returns the name of a renderer on the CPU; "" if a GPU may draw."""
    with open("/proc/self/maps") as file:
        libraries = {line.rpartition("/")[2].strip().lower() for line in file if ".so" in line}
    for part, name in SOFTWARE.items():
        if any(part in library for library in libraries):
            return name
    files = []
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            files.append(os.readlink("/proc/self/fd/" + descriptor))
        except OSError:  # closed since the list was made
            continue
    return "" if any(name.startswith(GPU_FILES) for name in files) else "software, because no GPU is open"
