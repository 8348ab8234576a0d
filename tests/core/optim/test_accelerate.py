"""AdamW through Accelerate: unsupported configurations of the launcher raise errors that name the fix."""

from __future__ import annotations

import pytest
import torch
from torch import nn

pytest.importorskip("accelerate")

from powerband.core.errors import ConfigError
from powerband.core.optim import deepspeed as zero
from powerband.core.optim.accelerate import AcceleratedAdam, use_device
from powerband.core.optim.precision import Precision
from powerband.core.ranks.ranks import Ranks

FSDP2 = {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"}
ZERO, PREFIX = {"ACCELERATE_USE_DEEPSPEED": "true"}, "ACCELERATE_DEEPSPEED_"


def adam(net: nn.Module | None = None, allow_sharding: bool = True) -> AcceleratedAdam:
    net = net or nn.Linear(2, 2)
    options = {"ranks": Ranks(), "precision": Precision("fp32", "cpu")}
    return zero.adam_for_launcher(net, 1e-3, **options) if allow_sharding else AcceleratedAdam(net, 1e-3, **options)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        (ZERO | {f"{PREFIX}ZERO_STAGE": "3"}, "zero_stage=3 .* --fsdp_version 2"),
        (ZERO | {f"{PREFIX}CONFIG_FILE": "zero.json"}, "deepspeed_config_file"),
        (ZERO | {f"{PREFIX}OFFLOAD_OPTIMIZER_DEVICE": "cpu"}, "offload_optimizer_device"),
        (ZERO, "leave --use_deepspeed out"),
        (ZERO | {"ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "4"}, r"rdt\.gradient_accumulation_steps"),
        ({"ACCELERATE_USE_FSDP": "true"}, "only FSDP 2"),
        (FSDP2 | {"FSDP_OFFLOAD_PARAMS": "true"}, "fsdp_offload_params"),
        (FSDP2 | {"FSDP_ACTIVATION_CHECKPOINTING": "true"}, "rdt.gradient_checkpointing=true"),
        (FSDP2 | {"FSDP_IGNORED_MODULES": "vision"}, "fsdp_ignored_modules"),
    ],
)
def test_unsupported_sharding_settings_are_refused(environment, message, monkeypatch) -> None:
    monkeypatch.setattr(zero, "find_spec", lambda name: name)  # no DeepSpeed needed: the refusal comes first
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=message):
        adam()


@pytest.mark.parametrize("environment", [FSDP2, ZERO])
def test_the_factored_optimiser_is_not_sharded(environment, monkeypatch) -> None:
    def build(self: AcceleratedAdam, precision: Precision) -> None:
        raise AssertionError("the accelerator is built before the refusal")

    monkeypatch.setattr(AcceleratedAdam, "_accelerator", build)
    monkeypatch.setattr(zero.ZeroAdam, "_accelerator", build)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    options = {"ranks": Ranks(), "precision": Precision("fp32", "cpu"), "factored": True}
    with pytest.raises(
        ConfigError, match="the factored optimiser cannot be sharded. Write rdt.optimizer=adamw, or use"
    ):
        zero.adam_for_launcher(nn.Linear(2, 2), 1e-3, **options)


def test_missing_deepspeed_is_reported(monkeypatch) -> None:
    monkeypatch.setattr(zero, "find_spec", lambda name: None)
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    with pytest.raises(ConfigError, match="pip install 'powerband.deepspeed.'"):
        adam()


@pytest.mark.parametrize("environment", [FSDP2, ZERO])
def test_a_compiled_or_unsupported_network_is_not_sharded(environment, monkeypatch) -> None:
    monkeypatch.setattr(zero, "find_spec", lambda name: name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    net = nn.Linear(2, 2)
    net.compile()
    with pytest.raises(ConfigError, match=r"rdt\.compile=false"):
        adam(net)
    with pytest.raises(ConfigError, match="--multi_gpu"):
        adam(allow_sharding=False)


def test_a_single_rank_keeps_full_weights(monkeypatch) -> None:
    for name, value in FSDP2.items():
        monkeypatch.setenv(name, value)
    trained = adam()
    before = trained.net.weight.detach().clone()
    trained.step(trained.forward(torch.ones(1, 2)).square().sum())
    trained.gather()
    assert not trained.sharded and not torch.equal(before, trained.net.weight)
    assert trained.state_dict()["0"]["exp_avg"].shape == (2, 2) and torch.equal(
        trained.weights()["weight"], trained.net.weight
    )


def test_a_rank_with_shards_does_not_search_for_a_fitting_batch() -> None:
    trained = adam()
    trained.sharded, trained._world_size = "weights", 2
    with pytest.raises(ConfigError, match="Halve offline.global_batch_size"):
        trained.forward(torch.ones(1, 2))


def test_the_loss_scale_is_part_of_the_state(monkeypatch) -> None:
    saving, loading = adam(allow_sharding=False), adam(allow_sharding=False)
    for each, scale in ((saving, 2.0**7), (loading, 2.0**16)):
        each.step(each.forward(torch.ones(1, 2)).sum())
        monkeypatch.setattr(each.accelerator, "scaler", torch.amp.GradScaler("cpu", init_scale=scale))
    state = saving.state_dict()
    loading.load_state_dict({name: each for name, each in state.items() if name != "scaler"})  # an earlier version
    assert loading.accelerator.scaler.get_scale() == 2.0**16
    loading.load_state_dict(state)
    assert loading.accelerator.scaler.get_scale() == 2.0**7
    monkeypatch.setattr(loading.accelerator, "scaler", None)
    loading.load_state_dict(state)  # continued in fp32
    assert "scaler" not in loading.state_dict()


def test_accelerate_uses_the_gpu_of_the_rank(monkeypatch):
    """As with gpus=2,3: the number of the GPU is not that of the local rank."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, PartialState

    chosen = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    AcceleratorState._reset_state(True)
    try:
        use_device(torch.device("cuda", 2))
        accelerator = Accelerator()
        assert accelerator.device == torch.device("cuda", 2) == chosen[0]
        assert accelerator.local_process_index == 2, "DistributedDataParallel uses it as the number of the GPU"
        use_device(torch.device("cpu"))
        assert PartialState().device == torch.device("cuda", 2) and len(chosen) == 1
    finally:
        AcceleratorState._reset_state(True)
