"""Predict: gains of changes from the ledger of the first profile.

A gain is a share of the rate: 0.5 means that the script makes 1.5 times as many iterations per second.
"""

from __future__ import annotations

from collections.abc import Callable

from powerband.attach.trial.observed import Loader, Observed

AsyncStep = Callable[[int, float, float], float | None]

TRANSPORT_S = 0.0005
"""Seconds in which the training thread receives a batch from a worker."""
CALL_S = 0.0002
"""Seconds per environment and call in which the training thread sends an action and receives an observation, where
they cannot be measured."""


def gain_of(before_s: float, after_s: float) -> float:
    """Returns the gain if the same work takes `after_s` and not `before_s`."""
    return before_s / max(after_s, 1e-9) - 1


def workers_gain(seen: Observed, loader: Loader, workers: int) -> float:
    """Predicts the gain of another number of workers of a batch loader.

    Workers load batches while the loop computes. The iteration takes as long as the slowest of three: everything
    else in the loop, a batch of a worker divided by their number, and the processor seconds divided by the cores.
    """
    iteration_s = seen.wall_s / loader.batches
    waited_s = loader.wait_s / loader.batches
    rest_s = iteration_s - waited_s
    if loader.num_workers == 0:
        load_s = waited_s
        processor_s = seen.cpu_s / loader.batches
    else:
        # The loop waits, so the workers are the slowest part and load all the time.
        load_s = loader.num_workers * iteration_s
        processor_s = (seen.cpu_s + seen.workers_cpu_s) / loader.batches
    after_s = max(rest_s + TRANSPORT_S, load_s / workers, processor_s / seen.cores)
    return gain_of(iteration_s, after_s)


def persistent_gain(seen: Observed, loader: Loader) -> float:
    """Predicts the gain of workers that stay between epochs."""
    return gain_of(seen.wall_s, seen.wall_s - loader.start_s)


def async_gain(seen: Observed, async_step_s: AsyncStep) -> float:
    """Predicts the gain of one process per environment, from environments that step one after another.

    Args:
        seen: Figures of the first profile.
        async_step_s: Measures a step of environments in processes; see `rehearsal.async_step_s`.
    """
    env_s = seen.seconds.get("env", 0.0)
    calls = max(1, seen.env_calls)
    steps = calls * seen.num_envs
    processor_s = seen.processor_s(env_s)
    step_s = async_step_s(seen.num_envs, (env_s - processor_s) / steps, processor_s / steps)
    if step_s is None:
        step_s = max(env_s / seen.num_envs, processor_s / seen.cores) / calls + seen.num_envs * CALL_S
    return gain_of(seen.wall_s, seen.wall_s - env_s + calls * step_s)


def sync_gain(seen: Observed) -> float:
    """Predicts the gain of environments that step one after another, from one process per environment."""
    waited_s = seen.seconds.get("env", 0.0) + seen.seconds.get("env_wait", 0.0)
    return gain_of(seen.wall_s, seen.wall_s - waited_s + seen.workers_env_s)


def cadence_gain(share: float, every: int) -> float:
    """Predicts the gain if only one of `every` calls is made, and the calls take `share` of the time."""
    return min(bound(share), gain_of(1.0, 1.0 - share * (1 - 1 / every)))


def bound(share: float) -> float:
    """Returns the gain if `share` of the time vanished."""
    return gain_of(1.0, max(1e-3, 1.0 - share))
