"""powerband trains policies, shows where the time of a run goes, and finds the fastest settings.

``__all__`` lists the public interface. Each name is imported when it is first used, so that ``import powerband`` does
not import torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from powerband import attach as attach
    from powerband.core.config import RunConfig as RunConfig
    from powerband.core.errors import ConfigError as ConfigError
    from powerband.core.rank_context import RankContext as RankContext
    from powerband.core.recipe import Algorithm as Algorithm
    from powerband.core.recipe import Recipe as Recipe
    from powerband.core.telemetry.phase_clock import PhaseClock as PhaseClock
    from powerband.data.types import EnvSpec as EnvSpec
    from powerband.data.types import Learner as Learner
    from powerband.data.types import Step as Step
    from powerband.data.types import TensorSpec as TensorSpec
    from powerband.data.types import VecEnv as VecEnv
    from powerband.tune.diagnose.diagnosis import diagnose as diagnose

__version__ = "0.1.0"

_MODULES = {
    "Algorithm": "powerband.core.recipe",
    "ConfigError": "powerband.core.errors",
    "EnvSpec": "powerband.data.types",
    "Learner": "powerband.data.types",
    "PhaseClock": "powerband.core.telemetry.phase_clock",
    "RankContext": "powerband.core.rank_context",
    "Recipe": "powerband.core.recipe",
    "RunConfig": "powerband.core.config",
    "Step": "powerband.data.types",
    "TensorSpec": "powerband.data.types",
    "VecEnv": "powerband.data.types",
    "diagnose": "powerband.tune.diagnose.diagnosis",
}
__all__ = ["__version__", "attach", *_MODULES]


def __getattr__(name: str) -> Any:
    if name == "attach":  # a package that can be called
        return import_module("powerband.attach")
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return vars(import_module(_MODULES[name]))[name]
