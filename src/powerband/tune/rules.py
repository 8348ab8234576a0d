"""Rules: one short function a cause, on the ledger and the facts beside it; thresholds are in `causes`.

A rule claims a share of the wall time. Special causes are asked first, and what they claim of an account is no longer
there for the general ones: waiting for one slow environment is a straggler, not slow environments.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable

from powerband.tune import causes as limit
from powerband.tune.case import Case, Finding
from powerband.tune.ledger import duration

# -- special causes -----------------------------------------------------------------------------------------------


def software_rendering(case: Case) -> Finding | None:
    share, renderer = case.ledger.share("env", "env_wait"), case.facts.renderer
    if share < limit.SOFTWARE_RENDERING or not any(word in renderer.lower() for word in limit.SOFTWARE_RENDERERS):
        return None
    return Finding(
        "software-rendering",
        share,
        f"Simulators take {share:.0%} of the time and draw their pictures on the processor, with {renderer}.",
        "Render on the GPU (MUJOCO_GL=egl with a driver's EGL), or lower the resolution of the pictures.",
        "env",
        ("num_workers",),
    )


def env_straggler(case: Case) -> Finding | None:
    steps, workers = case.facts.env_step_s, case.facts.worker_rows
    if len(steps) < 2 or not workers:
        return None
    slowest = max(range(len(steps)), key=steps.__getitem__)
    typical = statistics.median(steps)
    if steps[slowest] < limit.STRAGGLER_RATIO * typical or steps[slowest] - typical < limit.STRAGGLER_EXCESS_S:
        return None
    even = [typical if env == slowest else step for env, step in enumerate(steps)]
    before, after = (max(sum(times[row] for row in rows) for rows in workers) for times in (steps, even))
    share = case.ledger.share("env", "env_wait")
    claim = share * (before - after) / before
    if claim < limit.ENV_STRAGGLER:
        return None
    return Finding(
        "env-straggler",
        claim,
        f"Environment {slowest} takes {duration(steps[slowest])} a step where the median one takes "
        f"{duration(typical)}: all wait for it, and {claim:.0%} of the time is this wait.",
        f"Look at what environment {slowest} does (its task, its resets), or give it a worker of its own.",
        "env",
        ("num_workers",),
    )


def rank_straggler(case: Case) -> Finding | None:
    if len(case.ledgers) < 2:
        return None
    shares = [ledger.share("collectives") for ledger in case.ledgers]
    claim, slow = max(shares) - min(shares), shares.index(min(shares))
    if claim < limit.RANK_STRAGGLER:
        return None
    own, others = case.ledgers[slow], [ledger for rank, ledger in enumerate(case.ledgers) if rank != slow]
    extra = {name: own.share(name) - statistics.mean(ledger.share(name) for ledger in others) for name in own.seconds}
    where = max((name for name in extra if name != "collectives"), key=extra.get)
    return Finding(
        "rank-straggler",
        claim,
        f"Rank {slow} is late: the others wait in collectives for {claim:.0%} of the time. It spends "
        f"{own.share(where):.0%} of its time in {where}, {extra[where]:.0%} more than they do.",
        f"Look at what is different on rank {slow}: its device, its share of the work, who else uses its cores.",
        "env" if where in ("env", "env_wait") else "update",
    )


def comm_bound(case: Case) -> Finding | None:
    claim = min(ledger.share("collectives") for ledger in case.ledgers)
    if claim < limit.COMM_BOUND:
        return None
    each = case.ledger.mean_s("collectives")
    return Finding(
        "comm-bound",
        claim,
        f"Every rank spends {claim:.0%} of its time or more in collectives, {duration(each)} each.",
        "Fewer and larger all-reduces: a larger batch with fewer updates, or fewer ranks.",
        "",
        ("nproc", "global_batch_size", "minibatches"),
    )


def oversubscription(case: Case) -> Finding | None:
    facts = case.facts
    own, fair = facts.threads_s.get(facts.threads), facts.threads_s.get(max(1, facts.cores // facts.world_size))
    if not own or not fair or fair >= own:
        return None
    in_process = ("env",) if not facts.overlappable else ()
    claim = case.ledger.share("update", "act", "returns", "sample", *in_process) * (1 - fair / own)
    if claim < limit.OVERSUBSCRIBED:
        return None
    return Finding(
        "thread-oversubscription",
        claim,
        f"{facts.threads} threads in each of {facts.world_size} rank(s) share {facts.cores} cores: an update takes "
        f"{duration(own)}, and {duration(fair)} with {facts.cores // facts.world_size or 1} thread(s).",
        f"Set threads to the cores of a rank: {max(1, facts.cores // facts.world_size)}.",
        "update",
        ("threads",),
    )


def host_sync(case: Case) -> Finding | None:
    facts = case.facts
    seconds = facts.syncs_per_iteration * facts.iterations * facts.sync_s
    claim = min(1.0, seconds / case.ledger.wall_s)
    if claim < limit.HOST_SYNC:
        return None
    return Finding(
        "host-sync",
        claim,
        f"Python asks tensors for their values {facts.syncs_per_iteration:.0f} times an iteration, "
        f"{duration(facts.sync_s)} each: {claim:.0%} of the time.",
        "Keep figures on the device and read them once a log interval: no .item(), float() or print in the step.",
        "update",
    )


def small_batch(case: Case) -> Finding | None:
    fixed = case.facts.fixed_update_share
    if fixed is None or fixed < limit.SMALL_BATCH_FIXED:
        return None
    claim = max(0.0, case.ledger.share("update") * fixed - case.claimed.get("update", 0.0))
    if claim < limit.SMALL_BATCH:
        return None
    rows, times = case.facts.batch_rows, case.facts.update_s
    return Finding(
        "small-batch",
        claim,
        f"An update of {rows} rows takes {duration(times[rows])} and one of {max(times)} rows "
        f"{duration(times[max(times)])}: {fixed:.0%} of it is starting operations, not computing.",
        "Larger batches with fewer updates; compile or CUDA graphs where they are faster; fewer small operations.",
        "update",
        ("global_batch_size", "minibatches", "updates_per_interval", "compile", "graph_updates"),
    )


def _blocking(
    account: str, cause: str, what: str, fix: str, knobs: tuple[str, ...]
) -> Callable[[Case], Finding | None]:
    def rule(case: Case) -> Finding | None:
        claim = case.ledger.share(account)
        if claim < limit.BLOCKING:
            return None
        spans = case.ledger.spans.get(account)
        often = f"{spans.count} times, {duration(spans.mean_s)} each, " if spans else ""
        return Finding(
            cause, claim, f"Training stands still while {what}: {often}{claim:.0%} of the time.", fix, "", knobs
        )

    return rule


def data_wait(case: Case) -> Finding | None:
    claim = case.ledger.share("data_wait")
    if claim < limit.DATA_WAIT:
        return None
    wait, work = case.ledger.mean_s("data_wait"), case.ledger.mean_s("update")
    return Finding(
        "data-wait",
        claim,
        f"The loop waits {duration(wait)} for each batch and works {duration(work)} on it: {claim:.0%} of the time.",
        "More loader workers, prefetching, or data that is decoded once and kept.",
        "",
        ("loader_threads",),
    )


# -- general causes -----------------------------------------------------------------------------------------------


def no_overlap(case: Case) -> Finding | None:
    facts = case.facts
    if not facts.overlappable or facts.overlap or not facts.can_overlap:
        return None
    waits = max(0.0, case.ledger.share("env_wait") - case.claimed.get("env", 0.0))
    claim = min(waits, case.ledger.share("update", "sample"))
    if claim < limit.NO_OVERLAP:
        return None
    return Finding(
        "no-overlap",
        claim,
        f"Simulators and learner take turns: {case.ledger.share('env_wait'):.0%} of the time the learner waits for the "
        f"simulators, {case.ledger.share('update', 'sample'):.0%} they wait for it.",
        "Update while simulators step (overlap=true): the same updates, one step of policy lag.",
        "env",
        ("overlap",),
    )


def env_bound(case: Case) -> Finding | None:
    claim = max(0.0, case.ledger.share("env", "env_wait") - case.claimed.get("env", 0.0))
    if claim < limit.ENV_BOUND:
        return None
    facts, seconds = case.facts, case.ledger.seconds.get("env", 0.0) + case.ledger.seconds.get("env_wait", 0.0)
    if facts.env_steps:
        step_s = seconds * facts.num_envs * facts.world_size / facts.env_steps
        each = f", {duration(step_s)} a step of {facts.num_envs}"
    else:
        each = f", {duration(max(case.ledger.mean_s('env'), case.ledger.mean_s('env_wait')))} each"
    where = f" in {len(facts.worker_rows)} worker(s)" if facts.overlappable else ""
    work = f"; updates take {case.ledger.share('update', 'sample', 'returns'):.0%}"
    return Finding(
        "env-bound",
        claim,
        f"Environments{where} take {case.ledger.share('env', 'env_wait'):.0%} of the time{each}{work}.",
        "More environments at once, more workers where cores are free, or a faster simulator.",
        "env",
        ("num_workers", "num_envs", "overlap"),
    )


def update_bound(case: Case) -> Finding | None:
    claim = max(0.0, case.ledger.share("update", "sample", "returns") - case.claimed.get("update", 0.0))
    if claim < limit.UPDATE_BOUND:
        return None
    seconds = sum(case.ledger.seconds.get(name, 0.0) for name in ("update", "sample"))
    grads = case.facts.grad_steps
    each = f", {duration(seconds / grads if grads else case.ledger.mean_s('update'))} each"
    return Finding(
        "update-bound",
        claim,
        f"Updates take {case.ledger.share('update', 'sample', 'returns'):.0%} of the time{each}; simulators take "
        f"{case.ledger.share('env', 'env_wait'):.0%}.",
        "Faster arithmetic (bf16, compile), fewer updates a transition, a faster device; not more environments.",
        "update",
        ("precision", "compile", "threads", "updates_per_interval", "epochs"),
    )


def act_bound(case: Case) -> Finding | None:
    claim = case.ledger.share("act", "store")
    if claim < limit.ACT_BOUND:
        return None
    return Finding(
        "act-bound",
        claim,
        f"Choosing actions and storing steps take {claim:.0%} of the time, {duration(case.ledger.mean_s('act'))} and "
        f"{duration(case.ledger.mean_s('store'))} a step: few environments share each call.",
        "More environments a call: most of the cost of a call does not depend on their number.",
        "",
        ("num_envs",),
    )


RULES: list[Callable[[Case], Finding | None]] = [
    software_rendering,
    env_straggler,
    rank_straggler,
    comm_bound,
    oversubscription,
    host_sync,
    small_batch,
    _blocking(
        "eval", "eval-blocking", "it is evaluated", "Evaluate less often, on fewer episodes, or in another process.",
        ("eval_interval", "eval_episodes"),
    ),
    _blocking(
        "log", "log-blocking", "figures are written", "Log less often, and draw figures after the run.",
        ("log_interval_s", "log_interval", "tensorboard"),
    ),
    _blocking(
        "save", "save-blocking", "checkpoints are written", "Save less often, or to a faster disk.", ("save_interval",)
    ),
    data_wait,
    no_overlap,
    env_bound,
    update_bound,
    act_bound,
]  # fmt: skip
"""Special causes first: the general ones see what is left."""
