"""Which settings SAC, TD3 and DQN compute in compiled functions, and how numba caches these."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from algos.fused.pairs import SPEC
from powerband.algos.dqn import DQN
from powerband.algos.fused import dqn, sac, td3
from powerband.algos.sac import SAC
from powerband.algos.settings import DQNConfig, SACConfig, TD3Config
from powerband.algos.td3 import TD3
from powerband.core.rank_context import RankContext
from powerband.data.types import EnvSpec, TensorSpec

DISCRETE = EnvSpec(TensorSpec((5,)), TensorSpec((), torch.int64), num_actions=3)
LEARNERS: dict[str, tuple[Any, Any, EnvSpec]] = {
    "sac": (SAC, SACConfig, SPEC),
    "td3": (TD3, TD3Config, SPEC),
    "dqn": (DQN, DQNConfig, DISCRETE),
}


def is_compiled(name: str, precision: Any = "fp32", **options: Any) -> bool:
    learner, settings, spec = LEARNERS[name]
    context = RankContext.single(precision=precision)
    return learner(spec, settings(**{"hidden": (16,), "fused": True, **options}), context).fused is not None


@pytest.mark.parametrize("module", [sac, td3, dqn], ids=lambda module: module.__name__.rpartition(".")[2])
def test_compiled_functions_match_their_cache_in_the_next_process(module):
    """numba's key of a cached function contains its closure, and a function in it has another key in each process."""
    for kernel in module.kernels():
        assert [type(cell.cell_contents) for cell in kernel.py_func.__closure__] == [int], kernel


@pytest.mark.parametrize("name", LEARNERS)
def test_unsupported_settings_use_pytorch(name):
    assert is_compiled(name)
    assert not is_compiled(name, hidden=(16, 513)) and not is_compiled(name, compile=True)
    assert not is_compiled(name, "bf16")


@pytest.mark.parametrize("options", [{"dueling": True}, {"quantiles": 3}], ids=str)
def test_extensions_of_dqn_use_pytorch(options):
    assert not is_compiled("dqn", **options)


@pytest.mark.parametrize("name", LEARNERS)
@pytest.mark.parametrize(("threads", "width", "compiled"), [(1, 512, True), (2, 512, False), (2, 256, True)])
def test_wide_layers_use_pytorch_if_it_has_several_threads(monkeypatch, name, threads, width, compiled):
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    assert is_compiled(name, hidden=(width, 16)) == compiled
