"""Figures besides the ledger: costs of each environment, processor time, host-device synchronisations."""

from __future__ import annotations

import json
import threading
import time

import pytest
import torch

from envs.workers.faulty import Chained, Rendering
from powerband.bench.slow_envs import make_slow
from powerband.envs.workers.vector import WorkerVecEnv
from powerband.tune.measure.cpu_time import CpuMeter, CpuUse
from powerband.tune.measure.facts import WindowFacts
from powerband.tune.measure.probes import SyncCounter


@pytest.mark.parametrize("num_workers", [0, 2])
def test_workers_report_the_seconds_of_each_environment(num_workers: int):
    env_fns = [(make_slow, {"step_ms": ms}) for ms in (0.0, 0.0, 0.0, 8.0)]
    env = WorkerVecEnv(env_fns, num_workers=num_workers)
    env.reset(0)
    before = env.worker_statistics()
    assert before["spent_s"] == [0.0] * 4
    for _ in range(5):
        env.step(torch.zeros(4, 1))
    facts = env.worker_statistics()
    env.close()
    assert facts["spent_s"][3] >= 5 * 8e-3 > max(facts["spent_s"][:3])
    assert facts["worst_s"][3] >= 8e-3 and facts["renderer"] is None
    assert facts["worker_rows"] == ([[0, 1], [2, 3]] if num_workers else [[0, 1, 2, 3]])
    assert len(facts["cpu_s"]) == num_workers and all(spent > 0 for spent in facts["cpu_s"])


def test_environment_reports_its_renderer():
    env = WorkerVecEnv([Chained, Rendering], num_workers=1)
    assert env.worker_statistics()["renderer"] == "llvmpipe"
    env.close()


def test_sleeping_is_not_counted_as_waiting_for_a_core():
    def spin(seconds: float) -> None:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            sum(range(1000))

    meter, start = CpuMeter(), time.perf_counter()
    time.sleep(0.2)
    sleeping = meter.read(time.perf_counter() - start)
    if sleeping.queue_s is None:
        pytest.skip("this kernel does not keep scheduling statistics")
    assert sleeping.loop_queue_s < 0.1
    meter, start = CpuMeter(), time.perf_counter()
    threads = [threading.Thread(target=spin, args=(0.3,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wall_s = time.perf_counter() - start
    assert meter.read(wall_s).busy_cores > 0.5


def test_conversions_of_tensors_are_counted():
    with SyncCounter() as counter:
        tensor = torch.arange(3.0)
        float(tensor.sum())
        bool(tensor[0] == 0)
        tensor.tolist()
        tensor.mul(2)
    assert counter.count == 2 and not counter.active
    tensor[0].item()
    assert counter.count == 2


def test_facts_are_restored_from_json():
    facts = WindowFacts(
        iterations=3, update_s={64: 1e-3, 256: 2e-3}, batch_rows=64, host=CpuUse(busy_cores=1.5, preempted=2)
    )
    saved = json.loads(json.dumps(facts.to_dict()))
    assert WindowFacts.from_dict(saved) == facts and {"settled", "draws"} <= set(saved)
    assert facts.fixed_update_share == pytest.approx(2 / 3) and WindowFacts().fixed_update_share is None
