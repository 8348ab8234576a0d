"""Advice about the speed of updates: threads, precision, compiled losses and CUDA graphs. Learning is unchanged."""

from __future__ import annotations

from powerband.core.machine.device import this_cpu_emulates_bf16
from powerband.tune.advise.adviser import UNCHANGED, Adviser
from powerband.tune.measure.in_process import Measurement
from powerband.tune.predict.model import UPDATE_ACCOUNTS, ThroughputModel

UPDATES_MATTER = 0.3
"""If updates take at least this share of the wall time, short runs try settings that make updates faster."""


def threads(adviser: Adviser) -> None:
    """Adds advice on as many threads per rank as it has cores.

    The prediction uses updates that were timed with the present and with the advised number of threads. Unless
    `adviser.probe` is None, a short run measures the gain.
    """
    now, fair = adviser.facts.threads, max(1, adviser.facts.cores // adviser.ranks)
    times = adviser.facts.threads_s
    if now not in times or fair not in times or fair == now:
        return
    prediction: ThroughputModel | float = adviser.model.with_update_factor(times[fair] / times[now])
    result = adviser.run_with({"threads": fair})
    if result is not None and result.facts[0].iterations:  # acting and some simulators use the threads too
        prediction = adviser.rate_of(result)
    adviser.add("threads", fair, prediction, "as many threads as cores", probed=result is not None)


def precision(adviser: Adviser) -> None:
    """Adds advice on bfloat16 if the run uses float32 and updates take much of its time, measured in a short run.

    A CPU that emulates bfloat16 is far slower with it, so that nothing is measured there.
    """
    if adviser.on_cpu and this_cpu_emulates_bf16():
        return
    if adviser.knobs.get("precision") == "fp32" and _updates_matter(adviser):
        result = adviser.run_with({"precision": "bf16"})
        factor = _update_factor(adviser, result) if result is not None and result.facts[0].grad_steps else 0.0
        if factor:
            faster = adviser.model.with_update_factor(factor)
            adviser.add("precision", "bf16", faster, "bfloat16 matrix products", probed=True)


def compile_losses(adviser: Adviser) -> None:
    """Adds advice on compiled losses, measured in a short run.

    Earlier short runs compile the code and fill the cache, so the measured run does not include compilation.
    """
    if adviser.knobs.get("compile") is not False or not _updates_matter(adviser):
        return
    setting = {"compile": True}
    result = adviser.run_with(setting)
    if result is not None and not result.facts[0].grad_steps:  # compiling the actions took all the time
        result = adviser.run_with(setting)
    if result is not None and result.facts[0].grad_steps:  # its window includes compiling
        result = adviser.run_with(setting)
    if result is None:
        return
    if not result.facts[0].grad_steps:
        adviser.diagnosis.notes.append("compile=True was not measured: two short runs ended before their first update.")
        return
    factor = _update_factor(adviser, result)
    if factor:
        why = f"measured: compiled updates take {factor:.2f}x as long here"
        faster = adviser.model.with_update_factor(factor)
        adviser.add("compile", True, faster, why, probed=True, always_listed=True)


def graph_updates(adviser: Adviser) -> None:
    """Adds advice on CUDA graphs, with which the host launches all kernels of an iteration at once.

    A short run measures the gain. Without one it is predicted from the time in which the device waits for launches.
    """
    due = adviser.facts.grad_steps // max(adviser.facts.iterations, 1)
    k = adviser.knobs.graph_updates(due)
    waiting, total = adviser.diagnosis.ledger.launch.get("update", 0.0), adviser.ledger.seconds.get("update", 0.0)
    if adviser.knobs.get("graph_updates") == 0 and waiting and k:
        why = "the device waits while the host launches kernels; a graph launches them together"
        result = adviser.run_with({"graph_updates": k})
        if result is not None and result.facts[0].grad_steps:
            adviser.add("graph_updates", k, adviser.rate_of(result), why, probed=True)
        else:
            adviser.add("graph_updates", k, adviser.model.with_update_factor(1 - waiting / total), why)


def _updates_matter(adviser: Adviser) -> bool:
    return adviser.probe is not None and adviser.ledger.share("update") >= UPDATES_MATTER


def _update_factor(adviser: Adviser, changed: Measurement) -> float:
    """Returns the seconds per update of a changed run divided by those of the unchanged run; 0 if unknown.

    The unchanged run is measured again right after the changed one, because the load of a shared machine changes
    within minutes by more than most settings gain.
    """
    unchanged = adviser.measured_run(adviser.knobs.config, UNCHANGED)
    if unchanged is None or not unchanged.facts[0].grad_steps:
        return 0.0
    after, before = (
        sum(each.ledgers[0].by_host().seconds.get(name, 0.0) for name in UPDATE_ACCOUNTS) / each.facts[0].grad_steps
        for each in (changed, unchanged)
    )
    return after / before
