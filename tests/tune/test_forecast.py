"""The arithmetic behind an estimate: rings, shares of the work, cores, budgets, cadences; ledgers made by hand."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from powerband.core.config import ConfigError, RunConfig
from powerband.core.distributed import Ranks
from powerband.core.flat import FlatAdam
from powerband.core.precision import Precision
from powerband.core.schedule import UpdateSchedule
from powerband.loops.off_policy import OffPolicyConfig
from powerband.loops.on_policy import OnPolicyConfig
from powerband.recipes import gym
from powerband.tune.comm import Comm
from powerband.tune.estimate import Options
from powerband.tune.estimate_table import Estimate
from powerband.tune.facts import Facts
from powerband.tune.forecast import Budget, Forecast
from powerband.tune.ledger import Ledger, SpanFigures
from powerband.tune.reductions import Reductions
from powerband.tune.share import share_of

LINK = Comm("gloo", "given", 100e-6, ((1, 1e9),))
FACTS = Facts(
    iterations=100, env_steps=800, grad_steps=200, num_envs=8, cores=4, reductions=4.0, reduced_bytes=4e6,
    batch_rows=64, memory_bytes=3 * 2**30,
)  # fmt: skip
SECONDS = {"env": 1.0, "act": 0.5, "sample": 0.2, "update": 2.0, "store": 0.1, "other": 0.2}
"""100 iterations of 40 ms: of the share of one rank, 8 steps each."""


def ledger(cpu_s: float = 4.0, **more: float) -> Ledger:
    seconds = {**SECONDS, **more}
    spans = {name: SpanFigures(2, spent / 2, spent / 2, spent / 2, spent / 2) for name, spent in more.items()}
    return Ledger(sum(seconds.values()), seconds, spans, {}, cpu_s)


def forecast(ranks: int = 2, budget: Budget | None = None, **changes: object) -> Forecast:
    window = {"ledger": ledger(), "facts": FACTS, "apart": {}, **changes}
    return Forecast.of(ranks, comm=LINK if ranks > 1 else None, budget=budget or Budget(1_000_000), **window)


def test_a_ring_has_two_messages_a_rank_but_one_and_moves_twice_the_bytes_at_most():
    assert LINK.seconds(1, 5, 1e6) == 0 and LINK.seconds(8, 0, 0) == 0
    assert LINK.seconds(2, 1, 1e6) == pytest.approx(2 * 100e-6 + 1e6 / 1e9)
    assert LINK.seconds(4, 3, 6e6) == pytest.approx(3 * 6 * 100e-6 + 1.5 * 6e6 / 1e9)
    assert LINK.seconds(1024, 1, 1e12) == pytest.approx(2 * 1e12 / 1e9, rel=0.01)


def test_what_was_measured_between_two_ranks_is_predicted_for_two():
    sizes = [{"bytes": 4, "us": 200.0}, {"bytes": 2**20, "us": 900.0}, {"bytes": 2**26, "us": 90_000.0}]
    comm = Comm.measured("gloo", {"sizes": sizes})
    for each in sizes:
        assert comm.seconds(2, 1, each["bytes"]) * 1e6 == pytest.approx(each["us"], rel=0.01)
    assert comm.seconds(2, 3, 3 * 2**20) * 1e6 == pytest.approx(2700.0)  # three tensors, of the middle size each


def test_an_iteration_is_the_share_and_what_several_ranks_add():
    one, two = forecast(1), forecast(2)
    assert one.iteration_s == pytest.approx(0.04) and one.steps_per_s == pytest.approx(200)
    assert two.parts["comm"] == pytest.approx(4 * 2 * 100e-6 + 4e6 / 1e9)
    assert two.iteration_s == pytest.approx(0.04 + 0.0048)
    assert two.steps_per_s == pytest.approx(16 / 0.0448)  # each rank makes 8 of them
    assert two.limit == ("update", pytest.approx(0.022 / 0.0448)) and two.parts["cores"] == 0
    assert two.memory_bytes == 3 * 2**30


def test_ranks_beyond_the_cores_gain_nothing():
    many = [forecast(ranks) for ranks in (4, 8, 16)]
    assert many[0].parts["cores"] == 0 and many[1].limit[0] != "comm"
    for found in many[1:]:  # 40 ms of a core for each rank's iteration, on four cores
        assert found.iteration_s == pytest.approx(max(0.04 * found.ranks / 4, 0.04 + found.parts["comm"]))
        assert found.steps_per_s <= 4 * 200 + 1e-6
    assert many[2].limit[0] == "cores"
    waiting = forecast(8, ledger=ledger(cpu_s=0.4))  # simulators that sleep leave the cores to others
    assert waiting.parts["cores"] == 0 and waiting.steps_per_s > 1000
    workers = forecast(2, facts=replace(FACTS, env_cpu_s=40.0))  # but those in other processes count
    assert workers.iteration_s == pytest.approx(2 * 0.44 / 4)


def test_overlap_hides_all_reduces_behind_simulators():
    steps = {"facts": replace(FACTS, overlap=True, env_step_s=[5e-3] * 8, worker_rows=[list(range(8))])}
    waits = forecast(2, ledger=ledger(env_wait=1.8, cpu_s=1.0), **steps)
    assert waits.parts["comm"] == 0.0  # 22 ms of updates and 5 of messages fit into the 40 ms that workers step
    assert forecast(2, ledger=ledger(env_wait=1.8, cpu_s=1.0)).parts["comm"] > 0.004


@pytest.mark.parametrize(("limit", "ends", "steps"), [(0.0, "env_steps", 10**9), (3600.0, "time_limit_s", 720_000)])
def test_the_budget_that_is_spent_first_ends_the_run(limit: float, ends: str, steps: int):
    found = forecast(1, Budget(10**9, limit))
    assert found.ends_by == ends and found.env_steps == pytest.approx(steps, rel=1e-5)
    assert found.seconds == pytest.approx(limit or 5e6)
    long = forecast(1, Budget(1000, 3600.0))
    assert long.ends_by == "env_steps" and long.seconds == pytest.approx(5.0) and long.env_steps == 1000


def test_evaluations_and_checkpoints_are_put_back_as_often_as_they_come():
    budget = Budget(10_000, 0.0, 0, {"eval": 3000, "save": 0})
    plain = forecast(1, budget)
    assert plain.unknown == ["eval"] and plain.seconds == pytest.approx(50.0)
    seen = forecast(1, budget, ledger=ledger(eval=3.0))
    assert seen.unknown == [] and seen.steps_per_s == pytest.approx(200)  # 1.5 s each are not in the rate
    assert seen.seconds == pytest.approx(50.0 + 3 * 1.5)
    assert seen.to_dict()["apart"] == {"eval": {"times": 3, "seconds_each": 1.5}}
    told = forecast(1, budget, apart={"eval": 2.0})
    assert told.seconds == pytest.approx(56.0) and told.unknown == []
    short = forecast(1, replace(budget, time_limit_s=20.0), apart={"eval": 2.0})
    assert short.env_steps == pytest.approx(200 * 18, abs=1) and short.times(short.env_steps)["eval"] == 1
    assert forecast(1, replace(budget, time_limit_s=10.0)).unknown == []  # it ends before the first one


def test_no_updates_before_the_warm_up_is_over():
    cold, warm = forecast(1, Budget(10_000, warmup=4000)), forecast(1, Budget(10_000))
    assert warm.seconds - cold.seconds == pytest.approx(500 * 0.022)


@given(st.integers(1, 12), st.integers(0, 5), st.sampled_from([1, 2, 4, 8]))
def test_a_share_makes_as_many_updates_as_all_ranks_together(interval: int, updates: int, ranks: int):
    loop = OffPolicyConfig(
        num_envs=8, global_batch_size=64, replay_size=800, update_interval=interval, updates_per_interval=updates
    )
    whole = gym.Config(run=RunConfig(gpus="none", nproc=2, threads=3), off_policy=loop)
    share = share_of(gym, whole, ranks)
    own = share.off_policy
    assert (own.num_envs, own.global_batch_size, own.replay_size) == (8 // ranks, 64 // ranks, 800 // ranks)
    assert (share.run.nproc, share.run.gpus, share.run.threads) == (1, "none", 3)
    together, alone = (UpdateSchedule(each.update_interval, each.updates_per_interval or None) for each in (loop, own))
    due = sum(together.due(8) for _ in range(2 * interval))
    assert sum(alone.due(own.num_envs) for _ in range(2 * interval)) == due


def test_a_batch_of_each_rank_stays():
    loop = OffPolicyConfig(num_envs=8, batch_size_per_rank=32, global_batch_size=63)
    own = share_of(gym, gym.Config(run=RunConfig(gpus="none"), off_policy=loop), 4).off_policy
    assert (own.batch_size_per_rank, own.global_batch_size) == (32, 63)


@pytest.mark.parametrize(
    ("loop", "part"),
    [
        ({"on_policy": OnPolicyConfig(num_envs=6)}, "num_envs=6 is over all ranks and does not divide by 4 ranks"),
        ({"on_policy": OnPolicyConfig(num_envs=4, num_steps=6, minibatches=4)}, "minibatches=4 do not divide the 6"),
        ({"algo": "sac", "off_policy": OffPolicyConfig(num_envs=4, global_batch_size=30)}, "global_batch_size=30"),
    ],
)
def test_what_does_not_divide_says_so(loop: dict, part: str):
    with pytest.raises(ConfigError, match=part):
        share_of(gym, gym.Config(**{"algo": "ppo", "run": RunConfig(gpus="none"), **loop}), 4)


def test_all_reduces_are_counted_where_one_rank_makes_none():
    seen, ranks, net = Reductions(), Ranks(), nn.Linear(7, 1)
    adam = FlatAdam([net], 1e-3, precision=Precision("fp32", "cpu"), average=seen.noting(ranks.average_))
    for _ in range(3):
        adam.step(net.weight.square().sum())
    assert (seen.count, seen.size) == (3, 3 * adam.grad.nbytes) and adam.grad.numel() == 32  # two cache lines


def test_a_gpu_alone_has_a_stated_assumption():
    assert "assumed (PCIe" in str(Comm.pcie()) and Comm.pcie().to_dict()["source"] == "assumed"
    assert SimpleNamespace(**LINK.to_dict()).rates == [{"bytes": 1, "gb_per_s": 1.0}]


@pytest.mark.parametrize(("per_gpu", "price_per", "cost"), [(True, "auto", 12.0), (True, "machine", 6.0),
                                                            (False, "auto", 6.0), (False, "gpu", 12.0)])  # fmt: skip
def test_a_price_is_for_a_gpu_or_for_the_machine(per_gpu: bool, price_per: str, cost: float):
    found = forecast(2, Budget(10**9, time_limit_s=7200.0))  # two hours, 3 GiB a rank
    options = Options(price_per_hour=3.0, price_per=price_per, currency="CHF")
    whole = Estimate(options, found.budget, {2: found, 3: "no"}, LINK, per_gpu, 5 * 2**30, ["a note"])
    assert whole.cost(found) == pytest.approx(cost)
    assert whole.fits(found) is per_gpu  # one of 3 GiB fits into 5 on each GPU, two do not on one machine
    text = str(whole)
    assert "cost CHF" in text and f"{cost:.2f}" in text and "3  skipped: no" in text and "note: a note" in text
    assert ("(does not fit)" in text) is not per_gpu
    free = Estimate(Options(), found.budget, {2: found}, LINK, per_gpu, None, [])
    assert free.cost(found) is None and free.fits(found) is None and "cost" not in str(free)
