"""RewardProgram: how observation, reward and success of one task are computed from a simulation.

The ten tasks of MT10 have a program that is written by hand (`task_rewards`). The programs of the other forty are
translated from the metaworld package (`translation`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from types import ModuleType
from typing import Any

import numpy as np

from powerband.core.errors import ConfigError
from powerband.core.machine.cache_stamp import source_checksum
from powerband.core.machine.disk_cache import DiskCache, digest
from powerband.recipes.metaworld.env import metaworld_private
from powerband.recipes.metaworld.env.gymnasium_env import MetaWorldEnv
from powerband.recipes.metaworld.env.tasks import MT10_TASKS
from powerband.recipes.metaworld.env.threads import observation, package_terms, reward_terms
from powerband.recipes.metaworld.env.threads.method_writer import Untranslatable
from powerband.recipes.metaworld.env.threads.places import OBJECT_PLACES, element_view, mt10_views
from powerband.recipes.metaworld.env.threads.reward_terms import START_INDEX, RewardArrays
from powerband.recipes.metaworld.env.threads.rewards import reward_function
from powerband.recipes.metaworld.env.threads.translation import SIZES, translate

WriteRewards = Callable[[RewardArrays, int, int], None]
"""Compiled function ``(arrays, first, last)``: writes observation, reward and success of some simulations."""
CACHE = DiskCache(
    "metaworld-rewards",
    max_files=200,
    stale_warning="A translated reward is invalid",
    write_warning="The compiled reward of a task cannot be stored, so every start compiles it again",
)


@dataclass(frozen=True)
class RewardProgram:
    """How observation, reward and success of one task are computed from a simulation.

    Attributes:
        write: Compiled function ``(arrays, first, last)``. It writes observation, reward and success of the simulations
            ``first`` to ``last`` - 1 of ``arrays`` (`RewardArrays`).
        places, starts: Number of places and of start positions in ``arrays``.
        views: Function from mujoco.MjData of a simulation to index of a place -> view of its values.
        start: Function from an environment of the package, after a reset, to index of a start position -> its value.
        geoms: Geoms of the model that `views` or a reset of the package reads.
        touch: True if a success also requires that both fingers touch the object, which `write` takes for granted.
    """

    write: WriteRewards
    places: int
    starts: int
    views: Callable[[Any], dict[int, np.ndarray]]
    start: Callable[[Any], dict[int, Any]]
    geoms: tuple[str, ...]
    touch: bool = False


@cache
def reward_program(task: str) -> RewardProgram:
    """Returns the program of a task. The first call on a machine compiles for some seconds and stores the result.

    Raises:
        ConfigError: The source of the installed metaworld package cannot be translated.
    """
    if task in MT10_TASKS:
        return RewardProgram(
            write=reward_function(),
            places=reward_terms.PLACES,
            starts=reward_terms.STARTS,
            views=partial(mt10_views, task),
            start=partial(_mt10_start, task),
            geoms=tuple(place.removeprefix("geom:") for place in OBJECT_PLACES[task] if place.startswith("geom:")),
        )
    env = MetaWorldEnv(task)
    env.reset(seed=0)
    try:
        translation = translate(env.env)
    except Untranslatable as form:
        raise ConfigError(
            f"task={task}: backend=threads does not cover {form} in the installed version of metaworld. "
            f"Write backend=workers."
        ) from form
    return RewardProgram(
        write=_compiled(translation.source),
        places=translation.places,
        starts=len(translation.starts),
        views=partial(_translated_views, translation.reads),
        start=partial(_translated_start, translation.starts),
        geoms=metaworld_private.named_geoms(env.env),
        touch=translation.touch,
    )


def _mt10_start(task: str, env: Any) -> dict[int, Any]:
    return {START_INDEX[name]: value for name, value in metaworld_private.start_positions(task, env).items()}


def _translated_start(names: list[str], env: Any) -> dict[int, Any]:
    values = {index: metaworld_private.attribute(env, name) for index, name in enumerate(names)}
    return {index: np.nan if value is None else value for index, value in values.items()}


def _translated_views(reads: dict[tuple[str, str], int], data: Any) -> dict[int, np.ndarray]:
    return {
        place: element_view(data, element, quantity)[: SIZES[quantity]] for (element, quantity), place in reads.items()
    }


def _compiled(source: str) -> WriteRewards:
    """Compiles translated source and returns its function `write_rows`; numba stores the machine code in a cache.

    The file in the cache folder is never read: numba stores its results next to the file that a function names.
    """
    checksum = source_checksum(observation, package_terms, reward_terms)
    key = digest(f"{checksum} {source}".encode())
    stored = CACHE.file(key.encode())
    file = stored and stored.with_name(f"{key}.py")
    if file is not None and not file.exists():
        CACHE.write(file, lambda part: part.write_text(source, encoding="utf-8"))
    cached = file is not None and file.exists()
    # numba links machine code by the names of module and function, and imports the module when it loads the code.
    module = sys.modules[f"metaworld_rewards_{key}"] = ModuleType(f"metaworld_rewards_{key}")
    vars(module)["CACHED"] = cached
    exec(compile(source, str(file) if cached else "<translated rewards>", "exec"), vars(module))  # noqa: S102
    write: WriteRewards = vars(module)["write_rows"]
    return write
