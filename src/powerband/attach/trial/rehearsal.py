"""Rehearsal: measures how long a step of Gymnasium's `AsyncVectorEnv` takes on this machine.

Its environments wait and compute for as long as those of the script. What a message and a change of processes cost
depends on the machine: between two processors the cost per environment differed by a factor of ten.

The same environments are also stepped one after another. Only the ratio of both counts, because the times of the script
already contain what its vector environment and the end of each wait cost. The processor time of the vector environment
is part of what the script's environments seem to compute, so it is measured too and subtracted.

The file is also the script that measures.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from functools import partial

MEASURE_S, IDLE_S, LEAST_STEPS = 1.0, 0.2, 5
"""Seconds of a measurement, and of that of environments that do nothing; smallest number of steps of each."""
MOST_PROCESSES = 64
"""Largest number of processes. The ratio of more environments is taken to be that of this number."""
START_S = 30.0
"""Longest time in seconds for the start and the end of the processes."""


def async_step_s(num_envs: int, wait_s: float, compute_s: float) -> float | None:
    """Predicts the seconds of a step of `num_envs` environments in parallel; None if the rehearsal fails.

    It is the present step of all environments, scaled by the ratio that the rehearsal measures.

    Args:
        num_envs: Number of environments, one process each.
        wait_s, compute_s: Seconds in which a step of one environment waits and computes.
    """
    present_s = num_envs * (wait_s + compute_s)
    limit_s = START_S + 4 * MEASURE_S + 2 * (LEAST_STEPS + 1) * present_s
    command = [sys.executable, "-P", __file__, str(num_envs), repr(wait_s), repr(compute_s)]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=True)
        return float(ended.stdout) * present_s
    except (OSError, subprocess.SubprocessError, ValueError):
        return None


def measured_ratio(num_envs: int, wait_s: float, compute_s: float) -> float:
    """Returns the time of a step in parallel by that of a step one after another; see `async_step_s`."""
    import gymnasium
    import numpy as np

    class Environment(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(-1, 1, (8,), np.float32)
        action_space = gymnasium.spaces.Discrete(2)

        def __init__(self, wait_s: float, compute_s: float) -> None:
            self.wait_s, self.compute_s = wait_s, compute_s

        def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
            return np.zeros(8, np.float32), {}

        def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
            if self.wait_s:
                time.sleep(self.wait_s)
            end = time.thread_time() + self.compute_s
            while time.thread_time() < end:
                pass
            return np.zeros(8, np.float32), 0.0, False, False, {}

    def step_s(kind: type[gymnasium.vector.VectorEnv], wait_s: float, compute_s: float, seconds: float) -> float:
        envs = kind([partial(Environment, wait_s, compute_s)] * count)  # type: ignore[call-arg]
        envs.reset(seed=0)
        actions = np.zeros(count, np.int64)
        times: list[float] = []
        began = time.perf_counter()
        while time.perf_counter() - began < seconds or len(times) <= LEAST_STEPS:
            started = time.perf_counter()
            envs.step(actions)
            times.append(time.perf_counter() - started)
        envs.close()
        return statistics.fmean(times[1:])

    count = min(num_envs, MOST_PROCESSES)
    one_after_another, parallel = gymnasium.vector.SyncVectorEnv, gymnasium.vector.AsyncVectorEnv
    own_s = max(0.0, compute_s - step_s(one_after_another, 0.0, 0.0, IDLE_S) / count)
    return step_s(parallel, wait_s, own_s, MEASURE_S) / step_s(one_after_another, wait_s, own_s, MEASURE_S)


if __name__ == "__main__":
    print(measured_ratio(int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])))
