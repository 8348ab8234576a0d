"""Expert: builds the SAC agent of one task, of MT10 or of MT50, and converts it to named tensors and back."""

from __future__ import annotations

import torch
from torch import Tensor

from powerband.algos.sac import SAC
from powerband.core.rank_context import RankContext
from powerband.data.types import EnvSpec, TensorSpec
from powerband.loops.config import OffPolicyConfig
from powerband.recipes.metaworld.config import Config
from powerband.recipes.metaworld.env.tasks import ACTION, OBS, TASK_SETS

SAC_PARTS = ("actor", "critic", "target_critic", "temperature")


def build_learner(config: Config, context: RankContext) -> tuple[SAC, EnvSpec, OffPolicyConfig]:
    """Builds a new expert without environments.

    Args:
        config: A finalized configuration, with resolved task names.
        context: Device, precision and random numbers of this rank.

    Returns:
        The expert, the spaces of its environments, and the settings of its off-policy loop.
    """
    bound = torch.ones(ACTION)
    width = OBS + len(TASK_SETS.get(config.task, ()))
    spec = EnvSpec(obs=TensorSpec((width,)), action=TensorSpec((ACTION,)), low=-bound, high=bound)
    return SAC(spec, config.sac, context), spec, config.off_policy


def sac_tensors(sac: SAC) -> dict[str, Tensor]:
    """Returns the parameters of a SAC agent by name, for `load_sac_tensors`.

    A name is the network and the name of the parameter in it, with a dot between them. The dict also has ``centre`` and
    ``scale`` (4,), which map actions in [-1, 1] to the units of the environment.
    """
    named = {f"{part}.{name}": t for part in SAC_PARTS for name, t in getattr(sac, part).state_dict().items()}
    return {**named, "centre": sac.centre, "scale": sac.scale}


def load_sac_tensors(sac: SAC, tensors: dict[str, Tensor]) -> None:
    """Copies the parameters `tensors`, a result of `sac_tensors`, into the agent `sac`."""
    for part in SAC_PARTS:
        prefix = f"{part}."
        getattr(sac, part).load_state_dict(
            {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
        )
