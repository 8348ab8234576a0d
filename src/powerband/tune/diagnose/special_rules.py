"""Rules of special causes, such as one slow environment; their thresholds are in `causes`.

These rules run first, and the general rules see only the time that remains. For example, waiting for one slow
environment counts as a straggler and not as slow environments in general.
"""

from __future__ import annotations

import statistics

from powerband.tune.diagnose import causes as limit
from powerband.tune.diagnose.evidence import Evidence, Finding, Rule
from powerband.tune.measure.ledger import duration


def software_rendering(evidence: Evidence) -> Finding | None:
    """Returns a finding if simulators render images on the CPU."""
    share, renderer = evidence.ledger.share("env", "env_wait"), evidence.facts.renderer
    if evidence.facts.render_share is not None:
        share = min(share, evidence.facts.render_share)
    if share < limit.SOFTWARE_RENDERING or not any(name in renderer.lower() for name in limit.SOFTWARE_RENDERERS):
        return None
    return Finding(
        "software-rendering",
        share,
        f"Simulators that render their images on the CPU, with {renderer}, take {share:.0%} of the time.",
        "Render on the GPU (MUJOCO_GL=egl with a driver's EGL), or lower the resolution of the images.",
        "env",
        ("num_workers",),
    )


def env_straggler(evidence: Evidence) -> Finding | None:
    """Returns a finding if all environments wait for one slow environment."""
    steps, workers = evidence.facts.env_step_s, evidence.facts.worker_rows
    if len(steps) < 2 or not workers:
        return None
    slowest = max(range(len(steps)), key=steps.__getitem__)
    typical = statistics.median(steps)
    if steps[slowest] < limit.STRAGGLER_RATIO * typical or steps[slowest] - typical < limit.STRAGGLER_EXCESS_S:
        return None
    even = [typical if env == slowest else step for env, step in enumerate(steps)]
    before, after = (max(sum(times[row] for row in rows) for rows in workers) for times in (steps, even))
    explained_share = evidence.ledger.share("env", "env_wait") * (before - after) / before
    rows = evidence.facts.num_envs * evidence.facts.world_size
    if (
        evidence.facts.env_steps and rows
    ):  # waiting has other parts, such as pipes, which no faster environment shortens
        calls = evidence.facts.env_steps / rows
        explained_share = min(explained_share, (before - after) * calls / evidence.ledger.wall_s)
    if explained_share < limit.ENV_STRAGGLER:
        return None
    return Finding(
        "env-straggler",
        explained_share,
        f"Environment {slowest} takes {duration(steps[slowest])} per step and the median environment takes "
        f"{duration(typical)}. The others wait for it for {explained_share:.0%} of the time.",
        f"Check environment {slowest} (its task, its resets), or run it in a separate worker.",
        "env",
        ("num_workers",),
    )


def rank_straggler(evidence: Evidence) -> Finding | None:
    """Returns a finding if all ranks wait for one slow rank."""
    if len(evidence.ledgers) < 2:
        return None
    shares = [ledger.share("collectives") for ledger in evidence.ledgers]
    explained_share, slow = max(shares) - min(shares), shares.index(min(shares))
    if explained_share < limit.RANK_STRAGGLER:
        return None
    slow_ledger = evidence.ledgers[slow]
    others = [ledger for rank, ledger in enumerate(evidence.ledgers) if rank != slow]
    extra = {
        name: slow_ledger.share(name) - statistics.mean(ledger.share(name) for ledger in others)
        for name in slow_ledger.seconds
    }
    account = max((name for name in extra if name != "collectives"), key=extra.__getitem__)
    return Finding(
        "rank-straggler",
        explained_share,
        f"Rank {slow} is late: the others wait in collectives for {explained_share:.0%} of the time. It spends "
        f"{slow_ledger.share(account):.0%} of its time in {account}, {extra[account]:.0%} more than they do.",
        f"Check what differs on rank {slow}: its device, its share of the work, other processes on its cores.",
        "env" if account in ("env", "env_wait") else "update",
    )


def comm_bound(evidence: Evidence) -> Finding | None:
    """Returns a finding if every rank spends much of its time in collective calls, such as all-reduces."""
    explained_share = min(ledger.share("collectives") for ledger in evidence.ledgers)
    if explained_share < limit.COMM_BOUND:
        return None
    each = duration(evidence.ledger.mean_s("collectives"))
    return Finding(
        "comm-bound",
        explained_share,
        f"Every rank spends at least {explained_share:.0%} of its time in collectives, {each} each.",
        "Fewer and larger all-reduces: a larger batch with fewer updates, or fewer ranks.",
        "",
        ("nproc", "global_batch_size", "minibatches"),
    )


def oversubscription(evidence: Evidence) -> Finding | None:
    """Returns a finding if more threads than cores slow down the update."""
    facts = evidence.facts
    fair_threads = max(1, facts.cores // facts.world_size)
    if facts.threads > fair_threads:  # other processes may have the cores, and then fewer threads are faster still
        timed = [count for count in facts.threads_s if count <= fair_threads]
        fair_threads = min(timed, key=facts.threads_s.__getitem__, default=fair_threads)
    now, fair = facts.threads_s.get(facts.threads), facts.threads_s.get(fair_threads)
    if not now or not fair or fair >= now:
        return None
    in_process = ("env",) if not facts.overlappable else ()
    explained_share = evidence.ledger.share("update", "act", "returns", "sample", *in_process) * (1 - fair / now)
    if explained_share < limit.OVERSUBSCRIPTION:
        return None
    return Finding(
        "thread-oversubscription",
        explained_share,
        f"{facts.threads} threads in each of {facts.world_size} rank(s) share {facts.cores} cores: an update takes "
        f"{duration(now)}, and {duration(fair)} with {fair_threads} thread(s).",
        f"Set threads to the number of free cores per rank: {fair_threads}.",
        "update",
        ("threads",),
    )


def host_sync(evidence: Evidence) -> Finding | None:
    """Returns a finding if the training loop waits for the device to convert tensors to Python values."""
    facts = evidence.facts
    seconds = facts.syncs_per_iteration * facts.iterations * facts.sync_s
    waiting = explained_share = min(1.0, seconds / evidence.ledger.wall_s)
    lost = ""
    if facts.device_busy is not None:  # waiting for a busy device costs nothing; what follows is the loss
        explained_share = min(waiting, evidence.ledger.share("launch"))
        lost = f", after which the GPU waits for new kernels. That costs {explained_share:.0%}"
    if explained_share < limit.HOST_SYNC:
        return None
    return Finding(
        "host-sync",
        explained_share,
        f"The loop converts tensors to Python values {facts.syncs_per_iteration:.0f} times an iteration, "
        f"{duration(facts.sync_s)} each: {waiting:.0%} of the time{lost}.",
        "Accumulate metrics on the device and read them once per log interval: no .item(), float() or print per step.",
        "update" if facts.device_busy is None else "launch",
    )


def small_batch(evidence: Evidence) -> Finding | None:
    """Returns a finding if the time of an update hardly depends on the size of its batch."""
    fixed = evidence.facts.fixed_update_share
    if fixed is None or fixed < limit.SMALL_BATCH_FIXED:
        return None
    update = evidence.ledger.share("update")
    explained_share = max(0.0, update * fixed - evidence.explained_by_account.get("update", 0.0))
    if explained_share < limit.SMALL_BATCH:
        return None
    rows, times = evidence.facts.batch_rows, evidence.facts.update_s
    if times:
        sizes = f"An update of {rows} rows takes {duration(times[rows])} and one of {max(times)} rows "
        sizes += duration(times[max(times)])
    else:
        update_s = evidence.ledger.seconds.get("update", 0.0) / max(1, evidence.facts.grad_steps)
        sizes = f"An update takes {duration(update_s)} and has {evidence.facts.update_operations:.0f} operations"
    return Finding(
        "small-batch",
        explained_share,
        f"{sizes}: {fixed:.0%} of it launches operations and does not compute.",
        "Larger batches with fewer updates; compile or CUDA graphs if they are faster; fewer small operations.",
        "update",
        ("global_batch_size", "minibatches", "updates_per_interval", "compile", "graph_updates"),
    )


def launch_bound(evidence: Evidence) -> Finding | None:
    """Returns a finding if the device waits while the host launches its kernels."""
    ledger, busy = evidence.ledger, evidence.facts.device_busy
    explained_share = evidence.unexplained_share("launch", "launch")
    if explained_share < limit.LAUNCH_BOUND or busy is None:
        return None
    largest = sorted(ledger.launch, key=ledger.launch.__getitem__, reverse=True)[:3]
    parts = ", ".join(f"{name} {ledger.launch[name] / ledger.wall_s:.0%}" for name in largest)
    sizes = "More environments per step and larger batches" if evidence.facts.env_steps else "Larger batches"
    return Finding(
        "launch-bound",
        explained_share,
        f"The GPU runs kernels for {busy:.0%} of the time. For {explained_share:.0%} it waits while the host launches "
        f"them ({parts}).",
        f"{sizes}, because a launch costs the same for any size; CUDA graphs and compiled losses for updates; or the "
        "CPU, if it is faster at this size.",
        "",
        ("num_envs", "graph_updates", "compile", "global_batch_size", "minibatches", "gpus"),
    )


def blocking(account: str, cause: str, activity: str, fix: str, knobs: tuple[str, ...]) -> Rule:
    """Creates a rule that returns a finding if an activity that interrupts training, such as evaluation, takes long.

    Args:
        account: Account (category of time) of the activity.
        cause: Id in `CAUSES`.
        activity: Completion of the sentence "Training stops ...".
        fix: Remedy that the finding proposes.
        knobs: Settings of the activity.
    """

    def rule(evidence: Evidence) -> Finding | None:
        explained_share = evidence.ledger.share(account)
        if explained_share < limit.BLOCKING:
            return None
        spans = evidence.ledger.spans.get(account)
        count = f"{spans.count} times, {duration(spans.mean_s)} each, " if spans else ""
        sentence = f"Training stops {activity}: {count}{explained_share:.0%} of the time."
        return Finding(cause, explained_share, sentence, fix, "", knobs)

    return rule


def data_wait(evidence: Evidence) -> Finding | None:
    """Returns a finding if the training loop waits for its batch loader."""
    explained_share = evidence.ledger.share("data_wait")
    if explained_share < limit.DATA_WAIT:
        return None
    wait, work = (evidence.ledger.each_s(name, evidence.facts.grad_steps) for name in ("data_wait", "update"))
    return Finding(
        "data-wait",
        explained_share,
        f"The loop waits {duration(wait)} for each batch and updates with it for {duration(work)}: "
        f"{explained_share:.0%} of the time.",
        "More loader workers, prefetching, or a cache of decoded data.",
        "",
        ("loader_threads",),
    )


SPECIAL_RULES: tuple[Rule, ...] = (
    software_rendering,
    env_straggler,
    rank_straggler,
    comm_bound,
    oversubscription,
    host_sync,
    launch_bound,
    small_batch,
    blocking(
        "eval", "eval-blocking", "during evaluation", "Evaluate less often, on fewer episodes, or in another process.",
        ("eval_interval", "eval_episodes"),
    ),
    blocking(
        "log", "log-blocking", "while metrics are written", "Log less often, and draw figures after the run.",
        ("log_interval_s", "log_interval", "tensorboard"),
    ),
    blocking(
        "save", "save-blocking", "while checkpoints are written", "Save less often, or to a faster disk.",
        ("save_interval",),
    ),
    data_wait,
)  # fmt: skip
"""Rules in the order in which they run."""
