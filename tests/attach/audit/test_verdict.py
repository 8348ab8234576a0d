"""Verdicts, from invented runs: what each kind of difference says about an option."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from powerband.attach.audit.comparison import differences, environments, single_steps
from powerband.attach.audit.options import ScriptOption
from powerband.attach.audit.short_run import ShortRun
from powerband.attach.audit.source_scan import SourceScan
from powerband.attach.audit.texts import EVIDENCE, Wording
from powerband.attach.audit.values import acts_within, values_to_try
from powerband.attach.audit.verdict import Evidence, Verdict, judge
from powerband.attach.processes.records import Record

LOSSES = [(1.0 + 0.1 * step).hex() for step in range(20)]
EVENTS = [["e", 10], ["u", 1], *[["e", 1], ["u", 1]] * 19]


def run(
    changes: dict[str, Any] | None = None, console: str = "", stopped: bool = True, status: int = 0, **facts: Any
) -> ShortRun:
    """A run of one process with 20 updates in 29 steps of one environment; `facts` replace what it records."""
    series = facts.pop("series", {"loss": LOSSES, "parameters": LOSSES})
    counts = {"updates": 20, "env_steps": 29, "single_steps": 29, **facts.pop("counts", {})}
    events = facts.pop("events", EVENTS)
    line = {
        "kind": "facts",
        "counts": counts,
        "series": series,
        "values": {"environments": 1, **facts},
        "events": events,
    }
    changed = [{"kind": "changed", "id": key} for key in changes or {}]
    record = Record(1, 0, 0, {"rank": ""}, [*changed, line])
    return ShortRun(changes or {}, [record], console, {}, status, stopped, 1.0)


def option(name: str, value: Any, **fields: Any) -> ScriptOption:
    """An option of argparse that line 40 reads."""
    known = {"where": "train.py:9", "given": True, "choices": [], "reads": ["train.py:40"], **fields}
    return ScriptOption(f"argparse:{name}", name, value, type(value).__name__, **known)


def verdict(tmp_path: Path, one: ScriptOption, *trials: tuple[Any, ShortRun], base: ShortRun | None = None) -> Verdict:
    """The verdict about `one` after runs with other values."""
    unchanged = base or run()
    evidence = Evidence(one, (unchanged, unchanged), SourceScan(tmp_path), False, Wording("en"))
    for value, other in trials:
        evidence.add(value, other)
    return judge(evidence)


def changed(one: ScriptOption, value: Any, **facts: Any) -> tuple[Any, ShortRun]:
    """A trial of a value."""
    return value, run({one.id: value}, **facts)


def test_one_bit_of_a_loss_is_an_effect(tmp_path: Path) -> None:
    one = option("weight_decay", 1e-6)
    other = [*LOSSES[:19], (float.fromhex(LOSSES[19]) * (1 + 2e-16)).hex()]
    found = verdict(tmp_path, one, changed(one, 1e-5, series={"loss": LOSSES, "parameters": other}))
    assert found.verdict == "works" and "step 20" in found.evidence


def test_no_difference_at_any_value_is_no_effect(tmp_path: Path) -> None:
    one = option("prefetch", 4)
    found = verdict(tmp_path, one, changed(one, 8), changed(one, 1))
    assert found.verdict == "no-effect" and "4 → 8, 1" in found.evidence and "train.py:40" in found.evidence


def test_one_environment_steps_either_way(tmp_path: Path) -> None:
    one = option("num_envs", 16)
    found = verdict(tmp_path, one, changed(one, 1))
    assert found.evidence == "num_envs: 16 → 1: no difference: 1 environments step either way (train.py:40)"


def test_an_interval_that_keeps_the_work_has_no_effect(tmp_path: Path) -> None:
    one = option("update_interval", 1)
    losses = [*LOSSES[:3], *reversed(LOSSES[3:])]
    events = [["e", 10], ["u", 2], *[["e", 2], ["u", 2]] * 9]
    found = verdict(tmp_path, one, changed(one, 2, series={"loss": losses}, events=events))
    assert found.verdict == "no-effect" and "1.00 and 1.00; the order changes" in found.evidence


def test_an_interval_that_changes_the_work_works(tmp_path: Path) -> None:
    one = option("update_interval", 1)
    events = [["e", 10], ["u", 1], *[["e", 2], ["u", 1]] * 9]
    assert verdict(tmp_path, one, changed(one, 2, counts={"env_steps": 48}, events=events)).verdict == "works"


def test_a_target_interval_changes_no_order_and_works(tmp_path: Path) -> None:
    one = option("target_interval", 10)
    found = verdict(tmp_path, one, changed(one, 1, series={"loss": [*LOSSES[:3], *reversed(LOSSES[3:])]}))
    assert found.verdict == "works"


def test_an_error_alone_decides_nothing(tmp_path: Path) -> None:
    one = option("horizon", 20)
    found = verdict(tmp_path, one, changed(one, 40, status=1, stopped=False, console="ValueError: too long"))
    assert found.verdict == "unknown" and "ValueError: too long" in found.evidence


def test_an_option_that_acts_later_is_unknown_unless_a_value_acts_within_the_window(tmp_path: Path) -> None:
    one = option("eval_interval", 10_000)
    assert verdict(tmp_path, one, changed(one, 20_000)).verdict == "unknown"
    assert verdict(tmp_path, one, changed(one, 20_000), changed(one, 1)).verdict == "no-effect"


def test_what_differs_between_unchanged_runs_decides_nothing(tmp_path: Path) -> None:
    one, noisy = option("prefetch", 4), run(series={"loss": LOSSES[::-1]})
    evidence = Evidence(one, (run(), noisy), SourceScan(tmp_path), False, Wording("en"))
    evidence.add(*changed(one, 8, series={"loss": LOSSES[5:]}))
    assert judge(evidence).verdict == "unknown"


def test_an_option_that_nobody_reads(tmp_path: Path) -> None:
    one = option("amp", True, reads=[])
    assert verdict(tmp_path, one, changed(one, False)).verdict == "never-read"
    (tmp_path / "train.py").write_text("import args\nif args.amp:\n    print(args.amp)\n")
    found = verdict(tmp_path, one, changed(one, False))
    assert found.verdict == "unknown" and "train.py:2" in found.evidence  # it may be read after the window


def test_a_value_replaced_before_its_read_is_never_read(tmp_path: Path) -> None:
    one = option("n_step", 3, reads=[], overwritten="train.py:30")
    found = verdict(tmp_path, one, changed(one, 6))
    assert found.verdict == "never-read" and "train.py:30" in found.evidence


def test_rows_that_are_not_the_batch_size_are_misnamed(tmp_path: Path) -> None:
    one = option("batch_size", 64)
    found = verdict(
        tmp_path, one, changed(one, 32, rows={"learning 320": 20}), base=run(rows={"learning 640": 20, "acting 1": 9})
    )
    assert found.verdict == "misnamed" and "640 → 320" in found.evidence


@pytest.mark.parametrize(("old", "new"), [(True, False), (5.0, 50.0), (7, 14)])
def test_output_that_repeats_the_value_is_no_effect(old: Any, new: Any) -> None:
    base, other = (run(console=f"{{'a': False, 'x': {value}}}\nrun-{value} starts\n") for value in (old, new))
    hidden = [str(old), str(new)]
    assert differences((base, base), other, hidden) == []
    more = run(console=base.console + "saved\n")
    assert [one.aspect for one in differences((base, base), more, hidden)] == ["console"]


@pytest.mark.parametrize(
    "one", [option("lr", 1e-3), option("gamma", 0.99), option("batch_size", 64), option("total_steps", 10**6)]
)
def test_values_differ_and_stay_valid(one: ScriptOption) -> None:
    tried = values_to_try(one, [], 100)
    assert len(tried) >= 3 and one.value not in tried and all(value >= 0 for value in tried)
    assert one.name != "gamma" or all(value <= 1 for value in tried)
    assert acts_within(one, tried, 100)


def test_a_list_with_choices_is_tried_with_lists() -> None:
    one = option("sensors", ["ray"], choices=["ray", "camera", "speed"])
    assert values_to_try(one, [], 100) == [["camera"], ["speed"]]


def test_both_languages_have_the_same_sentences() -> None:
    assert EVIDENCE["en"].keys() == EVIDENCE["zh"].keys()


def test_a_run_that_was_too_slow_decides_nothing(tmp_path: Path) -> None:
    one = option("horizon", 20)
    value, other = changed(one, 40, series={}, calls={})
    found = verdict(tmp_path, one, (value, replace(other, timed_out=True)))
    assert found.verdict == "unknown"


def test_a_run_that_never_trained_decides_nothing(tmp_path: Path) -> None:
    one, base = option("lr", 1e-3), run(counts={"updates": 0}, series={}, events=[["e", 29]])
    found = verdict(tmp_path, one, changed(one, 1e-2, counts={"updates": 0}, series={}, events=[["e", 29]]), base=base)
    assert found.verdict == "unknown" and "before the first optimiser step" in found.evidence


def test_evidence_that_begins_with_the_value_names_the_option_and_other_evidence_does_not(tmp_path: Path) -> None:
    one, same = option("prefetch", "not"), option("prefetch", "not", reads=[])
    assert verdict(tmp_path, one, changed(one, "x")).evidence.startswith("prefetch: not → x")
    (tmp_path / "train.py").write_text("args.prefetch\n")
    found = verdict(tmp_path, same, changed(same, "x"))
    assert found.evidence.startswith("not read in 20 optimiser steps")  # these words begin with the value by chance


def test_steps_of_a_vector_environment_and_of_its_workers_count_once(tmp_path: Path) -> None:
    def steps(number: int, total: int, *others: Record) -> ShortRun:
        found = run(stopped=False, counts={"single_steps": total}, environments=number)
        return replace(found, records=[*found.records, *others])

    def worker() -> Record:
        facts = {"counts": {"env_steps": 50, "single_steps": 50}, "values": {"environments": 1}, "series": {}}
        return Record(2, 1, 1, {"rank": ""}, [{"kind": "facts", "events": [], **facts}])

    one, trial = option("total_timesteps", 200), steps(2, 100, worker(), worker())
    assert (environments(trial), single_steps(trial)) == (2, 100)
    trial.records[0].lines.insert(0, {"kind": "changed", "id": one.id})
    found = verdict(tmp_path, one, (100, trial), base=steps(2, 200, worker(), worker()))
    assert found.verdict == "works"
    remote = steps(0, 0, worker(), worker())  # only other processes have stepped environments
    assert (environments(remote), single_steps(remote)) == (2, 100)
