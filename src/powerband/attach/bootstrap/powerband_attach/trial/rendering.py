"""Rendering: MuJoCo's images without shadows. An environment variable chooses the back end before the start."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from powerband_attach.trial import settings
from powerband_attach.trial.replace import replace

RENDERERS = {
    ("mujoco.renderer", "Renderer.render"): "scene",
    ("gymnasium.envs.mujoco.mujoco_rendering", "OffScreenViewer.render"): "scn",
}
"""(module, method) -> attribute with the scene."""


def install() -> None:
    """Replaces the methods if the change is ``shadows``."""
    if settings.change("shadows") is not None:
        for (module, path), attribute in RENDERERS.items():
            replace(module, path, _without_shadows(attribute))


def _without_shadows(attribute: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def changed(original: Callable[..., Any]) -> Callable[..., Any]:
        def render(self: Any, *args: Any, **kwargs: Any) -> Any:
            import mujoco

            settings.made("shadows")
            getattr(self, attribute).flags[mujoco.mjtRndFlag.mjRND_SHADOW] = 0
            return original(self, *args, **kwargs)

        return render

    return changed
