"""The arithmetic of an estimate on hand-written ledgers: all-reduces, shares of the work, cores, budgets, cadences."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from powerband.core.config import RunConfig
from powerband.core.errors import ConfigError
from powerband.core.optim.flat_adam import FlatAdam
from powerband.core.optim.precision import Precision
from powerband.core.ranks.ranks import Ranks
from powerband.core.schedule import UpdateSchedule
from powerband.loops.config import OffPolicyConfig, OnPolicyConfig
from powerband.recipes.gym import RECIPE as GYM
from powerband.tune.measure.facts import WindowFacts
from powerband.tune.measure.ledger import Ledger, SpanStatistics
from powerband.tune.measure.reductions import AllReduceCounter
from powerband.tune.predict.comm import CommunicationModel
from powerband.tune.predict.estimate_table import Estimate
from powerband.tune.predict.forecast import Budget, Forecast
from powerband.tune.predict.options import EstimateOptions
from powerband.tune.predict.rank_share import single_rank_config

LINK = CommunicationModel("gloo", "given", 100e-6, ((1, 1e9),))
FACTS = WindowFacts(
    iterations=100, env_steps=800, grad_steps=200, num_envs=8, cores=4, reductions=4.0, reduced_bytes=4e6,
    batch_rows=64, memory_bytes=3 * 2**30,
)  # fmt: skip
SECONDS = {"env": 1.0, "act": 0.5, "sample": 0.2, "update": 2.0, "store": 0.1, "other": 0.2}
"""Accounts of 100 iterations of 40 ms of the share of one rank, with 8 steps each."""


def ledger(cpu_s: float = 4.0, **more: float) -> Ledger:
    seconds = {**SECONDS, **more}
    spans = {name: SpanStatistics(2, spent / 2, spent / 2, spent / 2, spent / 2) for name, spent in more.items()}
    return Ledger(sum(seconds.values()), seconds, spans, {}, cpu_s)


def forecast(ranks: int = 2, budget: Budget | None = None, **changes: object) -> Forecast:
    window = {"ledger": ledger(), "facts": FACTS, "cadence_costs": {}, **changes}
    return Forecast.from_window(ranks, comm=LINK if ranks > 1 else None, budget=budget or Budget(1_000_000), **window)


def test_all_reduce_over_a_ring():
    assert LINK.seconds(1, 5, 1e6) == 0 and LINK.seconds(8, 0, 0) == 0
    assert LINK.seconds(2, 1, 1e6) == pytest.approx(2 * 100e-6 + 1e6 / 1e9)
    assert LINK.seconds(4, 3, 6e6) == pytest.approx(3 * 6 * 100e-6 + 1.5 * 6e6 / 1e9)
    assert LINK.seconds(1024, 1, 1e12) == pytest.approx(2 * 1e12 / 1e9, rel=0.01)


def test_model_reproduces_the_measurement_between_two_ranks():
    sizes = [{"bytes": 4, "us": 200.0}, {"bytes": 2**20, "us": 900.0}, {"bytes": 2**26, "us": 90_000.0}]
    comm = CommunicationModel.measured("gloo", {"sizes": sizes})
    for each in sizes:
        assert comm.seconds(2, 1, each["bytes"]) * 1e6 == pytest.approx(each["us"], rel=0.01)
    assert comm.seconds(2, 3, 3 * 2**20) * 1e6 == pytest.approx(2700.0)  # three tensors of the middle size


def test_iteration_is_the_share_of_one_rank_plus_the_all_reduces():
    one, two = forecast(1), forecast(2)
    assert one.iteration_s == pytest.approx(0.04) and one.steps_per_s == pytest.approx(200)
    assert two.parts["comm"] == pytest.approx(4 * 2 * 100e-6 + 4e6 / 1e9)
    assert two.iteration_s == pytest.approx(0.04 + 0.0048)
    assert two.steps_per_s == pytest.approx(16 / 0.0448)  # 8 steps per rank
    assert two.limit == ("update", pytest.approx(0.022 / 0.0448)) and two.parts["cores"] == 0
    assert two.memory_bytes == 3 * 2**30


def test_more_ranks_than_cores_do_not_help():
    many = [forecast(ranks) for ranks in (4, 8, 16)]
    assert many[0].parts["cores"] == 0 and many[1].limit[0] != "comm"
    for each in many[1:]:  # an iteration of each rank takes 40 ms of a core, on four cores
        assert each.iteration_s == pytest.approx(max(0.04 * each.ranks / 4, 0.04 + each.parts["comm"]))
        assert each.steps_per_s <= 4 * 200 + 1e-6
    assert many[2].limit[0] == "cores"
    waiting = forecast(8, ledger=ledger(cpu_s=0.4))  # sleeping simulators do not use the cores
    assert waiting.parts["cores"] == 0 and waiting.steps_per_s > 1000
    workers = forecast(2, facts=replace(FACTS, env_cpu_s=40.0))  # simulators in other processes use them too
    assert workers.iteration_s == pytest.approx(2 * 0.44 / 4)


def test_overlap_hides_all_reduces_behind_simulators():
    steps = {"facts": replace(FACTS, overlap=True, env_step_s=[5e-3] * 8, worker_rows=[list(range(8))])}
    waits = forecast(2, ledger=ledger(env_wait=1.8, cpu_s=1.0), **steps)
    assert waits.parts["comm"] == 0.0  # 22 ms of updates and 5 ms of messages are less than 40 ms of simulation
    assert forecast(2, ledger=ledger(env_wait=1.8, cpu_s=1.0)).parts["comm"] > 0.004


@pytest.mark.parametrize(("limit", "ends", "steps"), [(0.0, "env_steps", 10**9), (3600.0, "time_limit_s", 720_000)])
def test_first_spent_budget_ends_the_run(limit: float, ends: str, steps: int):
    result = forecast(1, Budget(10**9, limit))
    assert result.ends_by == ends and result.env_steps == pytest.approx(steps, rel=1e-5)
    assert result.seconds == pytest.approx(limit or 5e6)
    long = forecast(1, Budget(1000, 3600.0))
    assert long.ends_by == "env_steps" and long.seconds == pytest.approx(5.0) and long.env_steps == 1000


def test_evaluations_and_checkpoints_are_added_as_often_as_they_occur():
    budget = Budget(10_000, 0.0, 0, {"eval": 3000, "save": 0})
    plain = forecast(1, budget)
    assert plain.unknown == ["eval"] and plain.seconds == pytest.approx(50.0)
    measured = forecast(1, budget, ledger=ledger(eval=3.0))
    assert measured.unknown == [] and measured.steps_per_s == pytest.approx(200)  # without 1.5 s per evaluation
    assert measured.seconds == pytest.approx(50.0 + 3 * 1.5)
    assert measured.to_dict()["apart"] == {"eval": {"times": 3, "seconds_each": 1.5}}
    elsewhere = forecast(1, budget, cadence_costs={"eval": 2.0})
    assert elsewhere.seconds == pytest.approx(56.0) and elsewhere.unknown == []
    short = forecast(1, replace(budget, time_limit_s=20.0), cadence_costs={"eval": 2.0})
    assert short.env_steps == pytest.approx(200 * 18, abs=1) and short.times(short.env_steps)["eval"] == 1
    assert forecast(1, replace(budget, time_limit_s=10.0)).unknown == []  # the run ends before the first evaluation


def test_no_updates_before_learning_starts():
    late, early = forecast(1, Budget(10_000, learning_starts=4000)), forecast(1, Budget(10_000))
    assert early.seconds - late.seconds == pytest.approx(500 * 0.022)


@given(st.integers(1, 12), st.integers(0, 5), st.sampled_from([1, 2, 4, 8]))
def test_share_of_one_rank_makes_as_many_updates_as_all_ranks(interval: int, updates: int, ranks: int):
    loop = OffPolicyConfig(
        num_envs=8, global_batch_size=64, replay_size=800, update_interval=interval, updates_per_interval=updates
    )
    config = GYM.Config(algo="sac", run=RunConfig(gpus="none", nproc=2, threads=3), off_policy=loop)
    share = single_rank_config(GYM, config, ranks)
    loop_share = share.off_policy
    sizes = (loop_share.num_envs, loop_share.global_batch_size, loop_share.replay_size)
    assert sizes == (8 // ranks, 64 // ranks, 800 // ranks)
    assert (share.run.nproc, share.run.gpus, share.run.threads) == (1, "none", 3)
    loops = loop, loop_share
    together, alone = (UpdateSchedule(each.update_interval, each.updates_per_interval or None) for each in loops)
    due = sum(together.due(8) for _ in range(2 * interval))
    assert sum(alone.due(loop_share.num_envs) for _ in range(2 * interval)) == due


def test_batch_size_per_rank_is_not_divided():
    loop = OffPolicyConfig(num_envs=8, batch_size_per_rank=32, global_batch_size=63)
    config = GYM.Config(algo="sac", run=RunConfig(gpus="none"), off_policy=loop)
    share = single_rank_config(GYM, config, 4).off_policy
    assert (share.batch_size_per_rank, share.global_batch_size) == (32, 63)


@pytest.mark.parametrize(
    ("loop", "part"),
    [
        ({"on_policy": OnPolicyConfig(num_envs=6)}, "num_envs=6 counts all ranks and is not divisible by 4 ranks"),
        ({"on_policy": OnPolicyConfig(num_envs=4, num_steps=6, minibatches=4)}, "minibatches=4 does not divide the 6"),
        ({"algo": "sac", "off_policy": OffPolicyConfig(num_envs=4, global_batch_size=30)}, "global_batch_size=30"),
    ],
)
def test_sizes_that_do_not_divide_are_refused(loop: dict, part: str):
    with pytest.raises(ConfigError, match=part):
        single_rank_config(GYM, GYM.Config(**{"algo": "ppo", "run": RunConfig(gpus="none"), **loop}), 4)


def test_all_reduces_are_counted_on_a_single_rank():
    counter, net = AllReduceCounter(), nn.Linear(7, 1)
    ranks = Ranks(on_average=counter.add)
    adam = FlatAdam([net], 1e-3, precision=Precision("fp32", "cpu"), average=ranks.average_)
    for _ in range(3):
        adam.step(net.weight.square().sum())
    assert (counter.count, counter.size) == (3, 3 * adam.grad.nbytes) and adam.grad.numel() == 32  # two cache lines


def test_single_gpu_uses_a_stated_assumption():
    assert (
        "assumed (PCIe" in str(CommunicationModel.pcie()) and CommunicationModel.pcie().to_dict()["source"] == "assumed"
    )
    assert SimpleNamespace(**LINK.to_dict()).rates == [{"bytes": 1, "gb_per_s": 1.0}]


@pytest.mark.parametrize(("per_gpu", "price_per", "cost"), [(True, "auto", 12.0), (True, "machine", 6.0),
                                                            (False, "auto", 6.0), (False, "gpu", 12.0)])  # fmt: skip
def test_price_is_per_gpu_or_per_machine(per_gpu: bool, price_per: str, cost: float):
    two = forecast(2, Budget(10**9, time_limit_s=7200.0))  # two hours, 3 GiB per rank
    options = EstimateOptions(price_per_hour=3.0, price_per=price_per, currency="CHF")
    priced = Estimate(options, two.budget, {2: two, 3: "no"}, LINK, per_gpu, 5 * 2**30, ["a note"])
    assert priced.cost(two) == pytest.approx(cost)
    assert priced.fits(two) is per_gpu  # 3 GiB fit into each GPU of 5 GiB, and 6 GiB do not fit into a machine of 5 GiB
    text = str(priced)
    assert "cost CHF" in text and f"{cost:.2f}" in text and "3  skipped: no" in text and "note: a note" in text
    assert ("(does not fit)" in text) is not per_gpu
    unpriced = Estimate(EstimateOptions(), two.budget, {2: two}, LINK, per_gpu, None, [])
    assert unpriced.cost(two) is None and unpriced.fits(two) is None and "cost" not in str(unpriced)


def test_evaluations_at_an_interval_in_seconds_are_counted() -> None:
    budget = Budget(100_000, intervals={"eval": 0, "save": 0}, eval_interval_s=30.0)
    result = forecast(1, budget, cadence_costs={"eval": 4.0})
    times = int(result.training_s(100_000) / 30)
    assert times > 3 and result.times(100_000) == {"eval": times}
    assert result.seconds == pytest.approx(result.training_s(100_000) + 4 * times)
    assert forecast(1, budget).unknown == ["eval"]
