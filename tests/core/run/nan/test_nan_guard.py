"""The NaN guard: the first bad update, the saved batch, and the error message."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass

import pytest
import torch
from safetensors.torch import load_file

from powerband.core.ranks.ranks import Ranks
from powerband.core.run.nan.nan_guard import NanGuard, describe_bad_values, leaves, truncate_batch
from powerband.core.run.nan.nan_report import MIN_HISTORY, gradient_trend, non_finite_error

NAMES = ("losses/critic", "losses/critic_grad_norm")


def batch(rows: int = 4, **leaves: torch.Tensor) -> dict:
    return {"obs": {"own": torch.zeros(rows, 3)}, "reward": torch.zeros(rows), **leaves}


def record(
    guard: NanGuard, *figures: float, given: dict | None = None, count: int = 1, source: dict | None = None
) -> None:
    guard.set_batch(batch() if given is None else given, source)
    guard.record(NAMES, torch.tensor(figures, dtype=torch.float64), count)


def on_device(scaled: bool = False) -> NanGuard:
    """A guard that keeps figures until `check` is called, as on CUDA."""
    guard = NanGuard(Ranks(), scaled)
    guard._batches = type(guard._batches)(maxlen=3)
    guard._cuda = True
    guard.set_batch = lambda given, source=None: (setattr(guard, "_batch", given), setattr(guard, "_source", source))
    return guard


def test_on_a_cpu_the_first_bad_update_is_detected_at_once_and_stays_the_first():
    guard = NanGuard(Ranks())
    record(guard, 1.0, 2.0)
    assert not guard.check()
    bad = batch(obs={"own": torch.tensor([[0.0, math.inf, 0.0]])}, reward=torch.zeros(1))
    record(guard, math.nan, 3.0, given=bad)
    record(guard, math.nan, math.nan)
    fault = guard.fault
    assert guard.check() and (fault.update, fault.bad, fault.batch_update) == (2, ["losses/critic"], 2)
    assert fault.environment == ["obs/own"] and fault.leaves == {"obs/own": "1 of 3 values not finite"}
    assert fault.norm_history == {"losses/critic_grad_norm": [(1, 2.0)]} and guard.saved is bad


def test_on_a_gpu_a_check_finds_the_first_bad_update_and_its_batch():
    guard = on_device()
    batches = [batch() for _ in range(6)]
    for index, given in enumerate(batches):
        record(guard, math.inf if index >= 4 else 1.0, 1.0, given=given)
    assert guard.fault is None and guard.check()
    assert guard.fault.update == 5 and guard.saved is batches[4], "three batches were kept: of updates 4, 5 and 6"


def test_if_the_first_bad_batch_is_gone_the_oldest_bad_one_is_saved_under_its_own_number():
    guard = on_device()
    batches = [batch() for _ in range(6)]
    for index, given in enumerate(batches):
        record(guard, math.nan if index >= 1 else 1.0, 1.0, given=given)
    assert guard.check() and guard.fault.update == 2
    assert guard.saved is batches[3] and guard.fault.batch_update == 4


def test_a_graph_replay_that_overwrites_its_batch_keeps_the_newest_one():
    guard, static = on_device(), batch()
    guard._captured = static
    for value in (1.0, math.nan, math.nan):
        record(guard, value, 1.0, count=5)
    assert guard.check() and (guard.fault.update, guard.fault.count) == (10, 5)
    assert guard.saved is static and guard.fault.batch_update == 15


def test_scaled_gradients_may_be_infinite_and_losses_may_not():
    guard = on_device(scaled=True)
    record(guard, 1.0, math.inf)
    assert not guard.check()
    record(guard, math.nan, math.inf)
    assert guard.check() and guard.fault.bad == ["losses/critic"] and guard.fault.update == 2


def test_a_bad_value_elsewhere_in_the_rollout_is_attributed_to_the_environment():
    guard, rollout = NanGuard(Ranks()), {"reward": torch.tensor([[0.0, math.nan]]), "advantages": torch.zeros(1, 2)}
    record(guard, math.nan, 1.0, given=batch(advantages=torch.full((4,), math.nan)), source=rollout)
    assert guard.fault.environment == ["reward of the rollout"]
    assert guard.fault.leaves["advantages"] == "4 of 4 values not finite"


@pytest.mark.parametrize(
    ("learner", "replay", "leaf", "environment"),
    [
        ({"net": {"w": torch.tensor([1.0, math.nan])}}, None, "learner/net/w", []),
        ({"net": {"w": torch.ones(2)}}, {"reward": torch.tensor([0.0, math.inf])}, "reward", ["reward"]),
        ({}, {"reward": torch.ones(2), "action": torch.tensor([0.0, math.nan])}, None, []),
        ({"moment": torch.tensor([1e30])}, {"reward": torch.tensor([1e30])}, None, []),
    ],
)
def test_the_contents_of_the_next_checkpoint_are_checked(learner, replay, leaf, environment):
    guard = NanGuard(Ranks())
    assert guard.check_state(learner, replay) == (leaf is not None)
    if leaf:
        assert list(guard.fault.leaves) == [leaf] and guard.fault.environment == environment


def test_the_saved_batch_is_bounded_and_starts_with_the_bad_rows(tmp_path):
    rows = 3_000_000
    reward, other = torch.zeros(rows), torch.zeros(rows, 8)
    reward[rows - 1] = math.nan
    small = truncate_batch({"reward": reward, "obs": {"own": other}}, 2**20)
    assert sum(leaf.nbytes for leaf in small.values()) <= 2**20
    assert small["reward"][0].isnan() and len(small["obs/own"]) == len(small["reward"]) > 10_000
    number = torch.tensor(3.0)
    with_number = truncate_batch({"reward": reward, "step": number}, 2**20)
    assert with_number["step"] == 3 and with_number["reward"][0].isnan() and len(with_number["reward"]) < rows
    sequences = {"obs": torch.zeros(64, 1000), "carry": torch.zeros(8, 500), "step": number}
    assert truncate_batch(sequences, 2**16)["step"] == 3
    assert sum(leaf.nbytes for leaf in truncate_batch(sequences, 2**16).values()) <= 2**16
    guard = NanGuard(Ranks())
    record(guard, math.nan, -math.inf)
    assert guard.save(tmp_path / "nan", 7, 9) == ""
    facts = json.loads((tmp_path / "nan" / "rank0.json").read_text(), parse_constant=pytest.fail)
    assert facts["figures"] == {NAMES[0]: "nan", NAMES[1]: "-inf"} and facts["rows"]["reward"] == [4, 4]
    assert set(load_file(tmp_path / "nan" / "rank0.safetensors")) == {"obs/own", "reward"}
    (tmp_path / "file").write_text("not a folder")
    assert "directory" in guard.save(tmp_path / "file" / "nan", 7, 9)


def test_bad_values_are_described():
    tree = {"a": torch.tensor([1, 2]), "b": {"c": torch.tensor([math.nan, 1e20])}, "reward": torch.tensor([-1e20])}
    assert describe_bad_values(tree) == {"b/c": "1 of 2 values not finite"}
    assert describe_bad_values(tree, ("reward",), 1e18) == {
        "reward": "values up to 1e+20, whose squares are not finite"
    }
    assert describe_bad_values({"none": torch.zeros(0)}) == {}
    assert [path for path, _ in leaves({"a": [torch.zeros(1), {"b": torch.zeros(1)}]})] == ["a/0", "a/1/b"]


@dataclass(frozen=True)
class Settings:
    lr: float = 1e-3
    critic_lr: float = 2e-3
    max_grad_norm: float | None = None


@dataclass(frozen=True)
class Unclipped:
    lr: float = 1e-3


def rising(factor: float, count: int = 40) -> list[tuple[int, float]]:
    return [(index, factor ** (index / (count - 1))) for index in range(count)]


@pytest.mark.parametrize(
    ("norm_history", "settings", "hint", "fix"),
    [
        (
            {"losses/critic_grad_norm": rising(1e6)},
            Settings(),
            "times as much",
            "Lower critic_lr (it is 0.002), or clip",
        ),
        ({"losses/grad_norm": rising(1e6)}, Settings(max_grad_norm=0.5), "stronger clipping will not help", "Lower lr"),
        ({"losses/actor_grad_norm": rising(1e6)}, Unclipped(), "times as much", "Lower lr (it is 0.001)"),
        ({"losses/grad_norm": rising(1e6)}, None, "times as much", "Lower the learning rate"),
        ({"losses/grad_norm": rising(1.5)}, Settings(), "did not grow", "Inspect the saved batch"),
        ({"losses/grad_norm": rising(1e9, MIN_HISTORY - 1)}, Settings(), "too few", "Inspect the saved batch"),
        ({}, Settings(), "too few", "Inspect the saved batch"),
    ],
)
def test_hints_follow_the_measured_gradients(norm_history, settings, hint, fix):
    trend, advice = gradient_trend(norm_history, settings)
    assert hint in trend and advice.startswith(fix), (trend, advice)
    assert "max_grad_norm" not in trend + advice or hasattr(settings, "max_grad_norm")


def test_the_message_names_the_rank_of_the_bad_environment():
    clean, faulty = NanGuard(Ranks()), NanGuard(Ranks(rank=1))
    record(clean, math.nan, math.nan)
    record(faulty, math.nan, math.nan, given=batch(reward=torch.full((4,), math.nan)))
    text = str(non_finite_error([asdict(clean.fault), asdict(faulty.fault)], 100, "Where.", "Good.", "again", None))
    assert "An environment of rank 1 produced them: reward (4 of 4 values not finite)" in text
    assert text.endswith("Fix the environment, then resume: again") and "diverged" not in text
