"""Advice about the stepping of simulators: overlap, double buffering and worker processes. Learning is unchanged."""

from __future__ import annotations

from powerband.tune.advise.advice import MIN_GAIN
from powerband.tune.advise.adviser import Adviser

OVERSUBSCRIBED_EFFICIENCY = 0.8
"""Share of the processor time that simulators can use if more of them compute than the machine has cores. The rest is
switching and waiting for the slowest. Without it, four workers that render with llvmpipe on two cores were predicted to
gain 1.07x, and the measured gain was 0.94x (`benchmarks/results/diagnosis/faults_recipes.json`)."""


def overlap(adviser: Adviser) -> None:
    """Adds advice on overlap, with which updates run while simulators step, and predicts its gain."""
    facts, model = adviser.facts, adviser.model
    if not facts.can_overlap or facts.overlap:
        return
    together = max(model.wait(model.num_envs), model.update_s, adviser.floor_s("update", "sample"))
    seconds = model.iteration_s - model.wait(model.num_envs) - model.update_s + together
    why = "updates run while simulators step; the gain is at most the smaller of the two"
    adviser.add("overlap", True, model.steps / seconds, why)


def double_buffer(adviser: Adviser) -> None:
    """Adds advice on double buffering with twice the workers, and measures its gain if the prediction is promising.

    With double buffering, the policy acts for one half of the environments while the other half steps.
    """
    facts, model, n = adviser.facts, adviser.model, adviser.model.num_envs
    if adviser.knobs.get("double_buffer") is not False or not facts.overlappable or n < 2:
        return
    halves = max(model.wait(n), 2 * model.act(n / 2), adviser.floor_s("act", "store"))
    rate = model.steps / (model.iteration_s - model.wait(n) - model.act(n) + halves)
    workers = adviser.knobs.get("num_workers", -1)
    also = {} if workers < 0 else {"num_workers": min(facts.num_envs, 2 * workers)}
    promising = rate >= MIN_GAIN * model.steps_per_s
    result = adviser.run_with({"double_buffer": True, **also}) if promising else None
    if result is not None and result.facts[0].iterations:
        rate = adviser.rate_of(result)
    why = "the policy chooses actions for one half while the simulators of the other half step"
    if also:
        why += f" (num_workers={also['num_workers']})"
    adviser.add("double_buffer", True, rate, why, probed=result is not None, also=also)


def num_workers(adviser: Adviser) -> None:
    """Adds advice on other numbers of worker processes, predicted from the measured step time of each environment."""
    facts, steps = adviser.facts, adviser.facts.env_step_s
    if "num_workers" not in adviser.knobs or not steps:
        return
    n, now = len(steps), len(facts.worker_rows)
    slowest = max(sum(steps[row] for row in rows) for rows in facts.worker_rows)
    calls = max(facts.env_steps / max(1, n * adviser.ranks), 1) / max(facts.iterations, 1)
    cpu = facts.env_cpu_s / max(facts.env_steps / max(1, adviser.ranks), 1)
    wait = adviser.model.wait(adviser.model.num_envs)
    overhead = max(0.0, wait - slowest * calls)
    rank_cores, best = max(1, facts.cores // adviser.ranks), 0.0
    for workers in sorted({min(n, 2 * now or 1), min(n, rank_cores), n} - {now}):
        oversubscribed = workers > rank_cores
        bounds = [n * index // workers for index in range(workers + 1)]
        longest = max(sum(steps[a:b]) for a, b in zip(bounds, bounds[1:], strict=False))
        floor = cpu * n * adviser.ranks / max(facts.cores, 1) / (OVERSUBSCRIBED_EFFICIENCY if oversubscribed else 1.0)
        predicted = adviser.model.with_wait(max(longest, floor) * calls + overhead)
        if oversubscribed and predicted.steps_per_s < MIN_GAIN * best:
            continue  # fewer workers are as fast
        best = max(best, predicted.steps_per_s)
        adviser.add("num_workers", workers, predicted, f"{n} environments over {workers} workers instead of {now}")
