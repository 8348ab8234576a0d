"""Every cause on a ledger just above and just below its threshold, the order of causes, and the clock of any loop."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from powerband import PhaseClock, diagnose
from powerband.tune.diagnose.causes import CAUSES
from powerband.tune.measure.facts import WindowFacts
from powerband.tune.measure.ledger import Ledger, SpanStatistics

FACTS = WindowFacts(iterations=1000, env_steps=4000, grad_steps=1000, num_envs=4, cores=8, threads=4)
WORKERS = replace(FACTS, overlappable=True, worker_rows=[[0, 1], [2, 3]], env_step_s=[1e-3] * 4)
EVEN = {"env": 0.35, "act": 0.1, "store": 0.1, "update": 0.43}


def ledger(shares: dict[str, float]) -> Ledger:
    """Returns a ledger of ten seconds with these shares, and the rest in ``other``."""
    seconds = {name: 10 * share for name, share in shares.items()}
    seconds["other"] = 10 - sum(seconds.values())
    spans = {
        name: SpanStatistics(1000, spent / 1000, spent / 1000, spent / 900, spent / 500)
        for name, spent in seconds.items()
    }
    return Ledger(10.0, seconds, spans, {}, 8.0, 8.0)


def cause_of(shares: dict[str, float] | list[dict[str, float]], facts: WindowFacts = FACTS) -> str:
    ranks = shares if isinstance(shares, list) else [shares]
    return diagnose([ledger(rank) for rank in ranks], replace(facts, world_size=len(ranks))).cause


def test_balanced_run_is_healthy():
    diagnosis = diagnose(ledger(EVEN), FACTS)
    assert diagnosis.cause == "healthy" and diagnosis.exit_code == 0 and "update 43%" in diagnosis.sentence


def test_updates_are_compared_with_the_simulators_or_with_the_batch_loader():
    simulated = diagnose(ledger({"update": 0.85, "env": 0.1}), FACTS)
    assert "simulators take 10%" in simulated.sentence and "environments" in simulated.findings[0].fix
    supervised = diagnose(ledger({"update": 0.85, "data_wait": 0.1}), replace(FACTS, env_steps=0, num_envs=0))
    assert "batch loader takes 10%" in supervised.sentence and "environments" not in supervised.findings[0].fix


def probed(fast: float, slow: float) -> WindowFacts:
    return replace(FACTS, batch_rows=64, update_s={64: fast, 256: slow})


CASES = {
    "env-bound": (({"env_wait": 0.7, "update": 0.2}, FACTS), ({"env_wait": 0.55, "update": 0.4}, FACTS)),
    "env-straggler": (
        ({"env_wait": 0.7, "update": 0.2}, replace(WORKERS, env_step_s=[1e-3, 1e-3, 1e-3, 20e-3])),
        ({"env_wait": 0.5, "update": 0.4}, replace(WORKERS, env_step_s=[1e-3, 1e-3, 1e-3, 1.4e-3])),
    ),
    "no-overlap": (
        ({"env_wait": 0.5, "update": 0.45}, replace(WORKERS, can_overlap=True)),
        ({"env_wait": 0.5, "update": 0.45}, replace(WORKERS, can_overlap=True, overlap=True)),
    ),
    "data-wait": (({"data_wait": 0.3, "update": 0.65}, FACTS), ({"data_wait": 0.15, "update": 0.7}, FACTS)),
    "update-bound": (({"update": 0.85, "env": 0.1}, FACTS), ({"update": 0.6, "env": 0.35}, FACTS)),
    "small-batch": (
        ({"update": 0.7, "env": 0.25}, probed(1e-3, 1.3e-3)),
        ({"update": 0.7, "env": 0.25}, probed(1e-3, 2.8e-3)),
    ),
    "launch-bound": (
        ({"launch": 0.8, "env": 0.05, "update": 0.07}, replace(FACTS, device_busy=0.15)),
        ({"launch": 0.2, "env": 0.3, "update": 0.4}, replace(FACTS, device_busy=0.7)),
    ),
    "host-sync": (
        (EVEN, replace(FACTS, syncs_per_iteration=40, sync_s=50e-6)),
        (EVEN, replace(FACTS, syncs_per_iteration=10, sync_s=50e-6)),
    ),
    "eval-blocking": (
        ({**EVEN, "update": 0.2, "eval": 0.2}, FACTS),
        ({**EVEN, "update": 0.38, "eval": 0.05}, FACTS),
    ),
    "log-blocking": (
        ({**EVEN, "update": 0.2, "log": 0.2}, FACTS),
        ({**EVEN, "update": 0.38, "log": 0.05}, FACTS),
    ),
    "save-blocking": (
        ({**EVEN, "update": 0.2, "save": 0.2}, FACTS),
        ({**EVEN, "update": 0.38, "save": 0.05}, FACTS),
    ),
    "rank-straggler": (
        ([{"env": 0.3, "update": 0.2, "collectives": 0.45}, {"env": 0.7, "update": 0.2, "collectives": 0.05}], FACTS),
        ([{"env": 0.4, "update": 0.4, "collectives": 0.15}, {"env": 0.45, "update": 0.4, "collectives": 0.1}], FACTS),
    ),
    "thread-oversubscription": (
        ({"update": 0.85, "env": 0.1}, replace(FACTS, threads=32, threads_s={32: 5e-3, 8: 1e-3})),
        ({"update": 0.6, "env": 0.35}, replace(FACTS, threads=32, threads_s={32: 1.05e-3, 8: 1e-3})),
    ),
    "software-rendering": (
        ({"env_wait": 0.8, "update": 0.1}, replace(WORKERS, renderer="llvmpipe (LLVM 17)")),
        ({"env_wait": 0.5, "update": 0.4}, replace(WORKERS, renderer="NVIDIA H200")),
    ),
    "comm-bound": (
        ([{"env": 0.3, "update": 0.3, "collectives": 0.35}] * 2, FACTS),
        ([{"env": 0.4, "update": 0.4, "collectives": 0.15}] * 2, FACTS),
    ),
    "act-bound": (({"act": 0.5, "store": 0.1, "env": 0.35}, FACTS), ({"act": 0.35, "store": 0.1, "env": 0.5}, FACTS)),
}  # fmt: skip


@pytest.mark.parametrize("cause", CASES)
def test_cause_is_found_and_its_near_miss_is_healthy(cause: str):
    faulty, near_miss = CASES[cause]
    assert cause_of(*faulty) == cause
    assert cause_of(*near_miss) == "healthy"


def test_every_cause_has_a_case_and_a_unique_code():
    assert set(CASES) | {"healthy", "too-short"} == set(CAUSES)
    codes = [code for code, _ in CAUSES.values()]
    assert len(set(codes)) == len(codes) and CAUSES["healthy"][0] == 0 and not {1, 2} & set(codes)


def test_a_gpu_that_waits_for_launches_is_named_with_the_accounts_that_launch():
    waiting = replace(ledger({"launch": 0.8, "env": 0.05}), launch={"env": 5.0, "act": 2.0, "update": 1.0})
    sentence = diagnose(waiting, replace(FACTS, device_busy=0.15)).sentence
    assert "runs kernels for 15% of the time" in sentence and "env 50%, act 20%, update 10%" in sentence


def test_overlap_also_hides_the_launches_of_updates():
    shares = {"env_wait": 0.4, "update": 0.05, "launch": 0.4}
    measured = replace(ledger(shares), launch={"update": 4.0})
    found = diagnose(measured, replace(WORKERS, can_overlap=True, device_busy=0.05)).findings
    assert "no-overlap" in {each.cause for each in found}


def test_special_cause_replaces_the_general_one_that_it_explains():
    diagnosis = diagnose(
        ledger({"env_wait": 0.9, "update": 0.05}), replace(WORKERS, env_step_s=[1e-3, 1e-3, 1e-3, 50e-3])
    )
    assert [each.cause for each in diagnosis.findings] == ["env-straggler"]
    assert "Environment 3 takes 50 ms" in diagnosis.sentence


def test_causes_are_sorted_by_the_time_that_they_explain():
    diagnosis = diagnose(ledger({"env_wait": 0.7, "eval": 0.15, "update": 0.1}), FACTS)
    assert [each.cause for each in diagnosis.findings] == ["env-bound", "eval-blocking"]
    assert "also eval-blocking" in str(diagnosis)


def test_too_few_iterations_are_not_diagnosed():
    assert cause_of(EVEN, replace(FACTS, iterations=2)) == "too-short"
    clock = PhaseClock()
    with clock("env"):
        pass
    assert diagnose(clock).cause == "too-short"


def test_clock_of_any_loop_is_diagnosed():
    clock = PhaseClock()
    for _ in range(6):
        with clock("env"):
            time.sleep(0.04)
        with clock("update"):
            time.sleep(0.004)
    diagnosis = diagnose(clock)
    assert diagnosis.cause == "env-bound" and "env" in str(diagnosis)


def test_conditions_that_distort_the_figures_are_noted():
    busy = replace(FACTS, host=replace(FACTS.host, busy_cores=7.5))
    (note,) = diagnose(ledger(EVEN), busy).notes
    assert "other processes use 6.7 of 8 cores" in note
    ranks = replace(busy, world_size=4, env_cpu_s=1.0)  # of each of four ranks
    own = 4 * (ledger(EVEN).cpu_s + 1.0) / ledger(EVEN).wall_s
    (note,) = [each for each in diagnose(ledger(EVEN), ranks).notes if "other processes" in each]
    assert f"other processes use {7.5 - own:.1f} of 8 cores" in note
    assert any("no span covers" in note for note in diagnose(ledger({"env": 0.4, "update": 0.4}), FACTS).notes)


def test_accounts_without_spans_name_their_time_per_step_or_update():
    acting = replace(ledger({"act": 0.6, "update": 0.3}), spans={})
    assert "time, 6 ms per step: few" in diagnose(acting, FACTS).sentence
    part = {"update": SpanStatistics(1000, 1e-3, 1e-3, 1e-3, 1e-3)}  # the backward pass alone
    waiting = replace(ledger({"data_wait": 0.3, "update": 0.65}), spans=part)
    assert "waits 3 ms for each batch and updates with it for 6.5 ms" in diagnose(waiting, FACTS).sentence


def test_the_late_rank_is_named_with_its_account():
    ranks = [{"env": 0.3, "update": 0.2, "collectives": 0.45}, {"env": 0.7, "update": 0.2, "collectives": 0.05}]
    found = diagnose([ledger(rank) for rank in ranks], replace(FACTS, world_size=2)).findings[0]
    assert "Rank 1 is late" in found.sentence and "70% of its time in env, 40% more" in found.sentence
