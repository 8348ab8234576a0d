"""What stands beside the ledger: costs of each environment, processor time, questions to tensors."""

from __future__ import annotations

import json
import threading
import time

import pytest
import torch

from powerband.envs.slow import SlowEnv, Tracking, make_slow
from powerband.envs.vector import WorkerVecEnv
from powerband.tune.facts import Facts
from powerband.tune.host import HostMeter, HostUse
from powerband.tune.probes import CountedQuestions


def drawing() -> SlowEnv:
    """An environment that says what it draws with."""
    env = make_slow(step_ms=0.0)
    env.renderer = "llvmpipe"
    return env


@pytest.mark.parametrize("num_workers", [0, 2])
def test_workers_say_what_the_steps_of_each_environment_cost(num_workers: int):
    makes = [(make_slow, {"step_ms": ms}) for ms in (0.0, 0.0, 0.0, 8.0)]
    env = WorkerVecEnv(makes, num_workers=num_workers)
    env.reset(0)
    before = env.facts()
    assert before["spent_s"] == [0.0] * 4
    for _ in range(5):
        env.step(torch.zeros(4, 1))
    facts = env.facts()
    env.close()
    assert facts["spent_s"][3] >= 5 * 8e-3 > max(facts["spent_s"][:3])
    assert facts["worst_s"][3] >= 8e-3 and facts["renderer"] is None
    assert facts["worker_rows"] == ([[0, 1], [2, 3]] if num_workers else [[0, 1, 2, 3]])
    assert len(facts["cpu_s"]) == num_workers and all(spent > 0 for spent in facts["cpu_s"])


def test_an_environment_can_say_what_it_draws_with():
    env = WorkerVecEnv([Tracking, drawing], num_workers=1)
    assert env.facts()["renderer"] == "llvmpipe"
    env.close()


def test_the_host_tells_waiting_for_a_core_from_sleeping():
    def spin(seconds: float) -> None:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            sum(range(1000))

    meter, start = HostMeter(), time.perf_counter()
    time.sleep(0.2)
    asleep = meter.read(time.perf_counter() - start)
    if asleep.queue_s is None:
        pytest.skip("this kernel keeps no scheduling figures")
    assert asleep.loop_queue_s < 0.1
    meter, start = HostMeter(), time.perf_counter()
    threads = [threading.Thread(target=spin, args=(0.3,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wall_s = time.perf_counter() - start
    assert meter.read(wall_s).busy_cores > 0.5


def test_questions_to_tensors_are_counted():
    with CountedQuestions() as counter:
        tensor = torch.arange(3.0)
        float(tensor.sum())
        bool(tensor[0] == 0)
        tensor.tolist()
        tensor.mul(2)
    assert counter.count == 2 and not counter.active
    tensor[0].item()
    assert counter.count == 2


def test_facts_survive_a_journey_as_json():
    facts = Facts(
        iterations=3, update_s={64: 1e-3, 256: 2e-3}, batch_rows=64, host=HostUse(busy_cores=1.5, preempted=2)
    )
    assert Facts.from_dict(json.loads(json.dumps(facts.to_dict()))) == facts
    assert facts.fixed_update_share == pytest.approx(2 / 3) and Facts().fixed_update_share is None
