"""Rules of general causes, such as slow environments, for the time that `special_rules` leave unexplained."""

from __future__ import annotations

from powerband.tune.diagnose import causes as limit
from powerband.tune.diagnose.evidence import Evidence, Finding, Rule
from powerband.tune.measure.ledger import duration


def no_overlap(evidence: Evidence) -> Finding | None:
    """Returns a finding if simulators and learner alternate although they could run at the same time."""
    facts, ledger = evidence.facts, evidence.ledger
    if not facts.overlappable or facts.overlap or not facts.can_overlap:
        return None
    wait, update = ledger.share("env_wait"), ledger.by_host().share("update", "sample")
    explained_share = min(evidence.unexplained_share("env", "env_wait"), update)
    if explained_share < limit.NO_OVERLAP:
        return None
    return Finding(
        "no-overlap",
        explained_share,
        f"Simulators and learner alternate: the learner waits for the simulators for {wait:.0%} of the time, and they "
        f"wait for it for {update:.0%}.",
        "Update while simulators step (overlap=true): the same updates, one step of policy lag.",
        "env",
        ("overlap",),
    )


def env_bound(evidence: Evidence) -> Finding | None:
    """Returns a finding if simulators take most of the time."""
    explained_share = evidence.unexplained_share("env", "env", "env_wait")
    if explained_share < limit.ENV_BOUND:
        return None
    facts, ledger = evidence.facts, evidence.ledger
    if facts.env_steps:
        seconds = ledger.seconds.get("env", 0.0) + ledger.seconds.get("env_wait", 0.0)
        step_s = seconds * facts.num_envs * facts.world_size / facts.env_steps
        each = f", {duration(step_s)} per step of {facts.num_envs}"
    else:
        each = f", {duration(max(ledger.mean_s('env'), ledger.mean_s('env_wait')))} each"
    workers = f" in {len(facts.worker_rows)} worker(s)" if facts.overlappable else ""
    updates = f"; updates take {ledger.by_host().share('update', 'sample', 'returns'):.0%}"
    return Finding(
        "env-bound",
        explained_share,
        f"Environments{workers} take {ledger.share('env', 'env_wait'):.0%} of the time{each}{updates}.",
        "More environments per step, more workers if cores are free, or a faster simulator.",
        "env",
        ("num_workers", "num_envs", "overlap"),
    )


def update_bound(evidence: Evidence) -> Finding | None:
    """Returns a finding if updates take most of the time."""
    explained_share = evidence.unexplained_share("update", "update", "sample", "returns")
    if explained_share < limit.UPDATE_BOUND:
        return None
    ledger, updates = evidence.ledger, evidence.facts.grad_steps
    seconds = sum(ledger.seconds.get(name, 0.0) for name in ("update", "sample"))
    each = f", {duration(seconds / updates if updates else ledger.mean_s('update'))} each"
    if evidence.facts.env_steps or not ledger.share("data_wait"):
        rest = f"simulators take {ledger.share('env', 'env_wait'):.0%}"
        fix = (
            "Faster arithmetic (compile, or bf16 if the hardware has it), fewer updates per transition, or a faster "
            "device; not more environments."
        )
    else:
        rest = f"the batch loader takes {ledger.share('data_wait'):.0%}"
        fix = (
            "Faster arithmetic (compile, or bf16 if the hardware has it) or a faster device; not a faster batch loader."
        )
    return Finding(
        "update-bound",
        explained_share,
        f"Updates take {ledger.share('update', 'sample', 'returns'):.0%} of the time{each}; {rest}.",
        fix,
        "update",
        ("precision", "compile", "threads", "updates_per_interval", "epochs"),
    )


def act_bound(evidence: Evidence) -> Finding | None:
    """Returns a finding if choosing actions takes most of the time."""
    ledger = evidence.ledger
    explained_share = ledger.share("act", "store")
    if explained_share < limit.ACT_BOUND:
        return None
    facts = evidence.facts
    steps = facts.env_steps // max(1, facts.num_envs * facts.world_size) or facts.iterations
    act, store = (ledger.each_s(name, steps) for name in ("act", "store"))
    each = duration(act) + (f" and {duration(store)}" if store else "")
    return Finding(
        "act-bound",
        explained_share,
        f"Choosing actions and storing steps take {explained_share:.0%} of the time, {each} per step: few "
        f"environments share each call.",
        "More environments per call, because most of the cost of a call does not depend on their number.",
        "",
        ("num_envs",),
    )


GENERAL_RULES: tuple[Rule, ...] = (no_overlap, env_bound, update_bound, act_bound)
"""Rules in the order in which they run, after those in `special_rules`."""
