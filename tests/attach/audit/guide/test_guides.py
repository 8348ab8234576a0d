"""The five guides: each finds its recipe, all commands resolve, and the claims get true verdicts from invented runs."""

from __future__ import annotations

import functools
import json
import re
from collections import Counter
from pathlib import Path

import pytest

from attach.audit.guide.invented import GUIDES, Runs, audited, value
from powerband.attach.audit.guide.guide_audit import GuideResult
from powerband.attach.audit.guide.markdown import blocks_of, cells, language_of, read_guide

RECIPE = {"0": "metaworld", "1": "uav", "2": "snakes", "3": "sketchnav", "4": "libero"}
VERDICTS = {"confirmed", "refuted", "no-effect", "not-measurable", "refused"}
ids = pytest.mark.parametrize("path", GUIDES, ids=lambda path: path.name)


@functools.cache
def resolved(path: Path) -> GuideResult:
    """The audit of a guide without measurements."""
    return audited(read_guide(path))


def test_all_five_guides_are_here() -> None:
    assert [path.name[0] for path in GUIDES] == list(RECIPE)


@ids
def test_a_guide_finds_its_recipe_and_resolves_its_commands(path: Path) -> None:
    result = resolved(path)
    assert result.recipe == RECIPE[path.name[0]]
    refused = [command.line for command, found in result.commands if found.status == "refused"]
    assert refused == {"sketchnav": [119, 160]}.get(result.recipe, [])
    for _, found in result.commands:
        assert found.status in ("works", "notice", "refused", "tool", "unknown")
        assert (found.status == "works") <= (not found.message)
    assert len([1 for _, found in result.commands if found.status in ("works", "notice")]) >= 4
    assert result.runs == 0 and result.complete


@ids
def test_every_line_of_a_guide_stays(path: Path) -> None:
    text = read_guide(path)
    written = iter(resolved(path).markdown.splitlines())
    for line in text.splitlines():
        assert line in written, line  # consumes the iterator: all lines, in their order


@ids
def test_a_result_keeps_the_structure_of_the_guide(path: Path) -> None:
    text = read_guide(path)
    before = [block.kind for block in blocks_of(text.splitlines()) if block.kind != "quote"]
    after = [block.kind for block in blocks_of(resolved(path).markdown.splitlines()) if block.kind != "quote"]
    assert after[: len(before)] == before


@ids
def test_the_json_lists_every_claim(path: Path) -> None:
    text = read_guide(path)
    claims = json.loads(json.dumps(resolved(path).to_dict()))["claims"]
    assert claims
    for claim in claims:
        assert claim["verdict"] in VERDICTS and claim["evidence"]
        line = text.splitlines()[claim["line"] - 1]
        assert _letters(claim["text"]) in _letters(line)


def _letters(text: str) -> str:
    """The text without marks of Markdown and other symbols."""
    return re.sub(r"[*`|>\s✅❌]", "", text)


def test_the_snakes_guide_is_judged_by_what_the_runs_show() -> None:
    runs = Runs(rate=lambda config: 40.0)
    result = audited(read_guide(GUIDES[2]), runs)
    by_line = {(v.claim.line, v.claim.effect.kind): v for v in result.verdicts}
    assert by_line[155, "speed"].verdict == "refuted"  # 3 times faster
    assert by_line[159, "updates"].verdict == "no-effect"  # fewer updates: the guide's code makes as many
    assert by_line[94, "updates"].verdict == "refuted"  # 10 updates per episode instead of 100
    assert by_line[193, "memory"].verdict == "no-effect"
    assert by_line[120, "speed"].reason == "gpus"
    assert by_line[154, "utilisation"].reason == "cuda"
    assert by_line[74, "learning"].reason == "learning"
    assert {config.algo for config in runs.configs} == {"ddpg"}
    line = next(line for line in result.markdown.splitlines() if "不是 3 倍" in line)
    assert line.startswith("  > powerband：不成立") and "每步更新数仍为 1" in line


def test_the_uav_guide_measures_what_is_about_an_option_of_the_cpu() -> None:
    runs = Runs(rate=lambda config: 100.0 if config.run.detect_anomaly else 150.0)
    result = audited(read_guide(GUIDES[1]), runs)
    measured = [v for v in result.verdicts if v.comparison is not None]
    assert [(v.claim.line, v.claim.option, v.verdict) for v in measured] == [(52, "run.detect_anomaly", "confirmed")]
    assert measured[0].ratio is not None and measured[0].ratio[0] == pytest.approx(1.5, rel=0.03)


def test_a_throughput_of_batches_counts_transitions() -> None:
    """Four times the batch at half the rate learns from twice the transitions."""
    runs = Runs(rate=lambda config: 100.0 / value(config, "off_policy.global_batch_size") ** 0.5)
    result = audited(read_guide(GUIDES[0]), runs)
    verdict = next(v for v in result.verdicts if v.claim.line == 49 and v.claim.effect.kind == "speed")
    assert (verdict.verdict, verdict.figure) == ("confirmed", "rows")
    assert verdict.ratio is not None and verdict.ratio[0] == pytest.approx(2.0, rel=0.05)
    assert verdict.comparison is not None and verdict.comparison.values == (512, 2048)


def test_a_row_with_two_numbers_compares_them() -> None:
    runs = Runs(rate=lambda config: 10.0)
    result = audited(read_guide(GUIDES[4]), runs)
    verdict = next(v for v in result.verdicts if v.claim.line == 37)
    assert (verdict.claim.before, verdict.claim.value, verdict.verdict) == ("4", "8", "refuted")  # "2倍加速数据加载"


def test_most_claims_of_a_guide_state_why_they_are_not_measured() -> None:
    counts = Counter(v.reason for v in resolved(GUIDES[4]).verdicts)
    assert counts["gpus"] > 10 and not counts["failed"]


@pytest.mark.parametrize(
    ("text", "lang"),
    [("# 指南\n批次 batch_size 更大", "zh"), ("# Guide\nA larger batch_size is faster", "en"), ("", "en")],
)
def test_the_language_of_a_guide(text: str, lang: str) -> None:
    assert language_of(text) == lang


def test_a_row_keeps_escaped_bars() -> None:
    assert cells("| a \\| b | **c** |") == ["a | b", "c"]
