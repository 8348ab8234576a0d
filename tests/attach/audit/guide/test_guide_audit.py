"""Audit of short guides: order of the runs, budget, interruption, and the output in both languages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from attach.audit.guide.invented import Runs, audited
from powerband.attach.audit.guide.claims import MAX_CLAIMS
from powerband.attach.audit.guide.comparison import MIN_PAIRS
from powerband.attach.audit.guide.markdown import MAX_BYTES, blocks_of, read_guide
from powerband.attach.audit.guide.verdict import verdict_of
from powerband.core.errors import ConfigError

GUIDE = """# Faster snakes

```bash
python main.py --update_interval 10
```

With `update_interval=10` training is 3x faster.

- `--batch_size 256` reduces memory.
  It continues here.
- `update_interval=10` makes fewer updates.

Nothing is promised here.
"""


def test_english_results_follow_the_claims() -> None:
    lines = audited(GUIDE, Runs(rate=lambda config: 10.0)).markdown.splitlines()
    position = lines.index("With `update_interval=10` training is 3x faster.")
    assert lines[position + 1] == "" and lines[position + 3] == ""
    assert lines[position + 2].startswith("> powerband: refuted: measured 0.99x (0.96 to 1.03) the steps")
    assert lines[position + 2].endswith("; updates per step stay at 1; not 3x")
    item = lines.index("  It continues here.")
    assert lines[item + 1].startswith("  > powerband: no effect: measured 1x the memory on ")
    fewer = lines.index("- `update_interval=10` makes fewer updates.")
    assert "updates per step stay at 1" in lines[fewer + 1]
    assert "## Audit by powerband" in lines and any(line.startswith("| 4 | `python main.py") for line in lines)


def test_a_faster_run_confirms_a_claim() -> None:
    runs = Runs(rate=lambda config: 30.0 if config.off_policy.update_interval == 10 else 10.0)
    verdicts = {v.claim.effect.kind: v.verdict for v in audited(GUIDE, runs).verdicts}
    assert verdicts == {"speed": "confirmed", "memory": "no-effect", "updates": "no-effect"}


def test_pairs_alternate_and_end_when_they_are_decided() -> None:
    runs = Runs(rate=lambda config: 10.0)
    text = "# snakes\n\n`update_interval=10` of the recipe snakes is faster than update_interval=1.\n"
    result = audited(text, runs, recipe="snakes")
    intervals = [config.off_policy.update_interval for config in runs.configs]
    assert intervals == [1, 1, 10, 10, 1, 1, 10]  # one run to warm up, then three pairs
    assert result.runs == 2 * MIN_PAIRS + 1


def test_the_small_variant_is_measured_if_the_default_is_too_slow() -> None:
    ran: list[Any] = []
    quick = Runs(rate=lambda config: 10.0)

    def slow(recipe: Any, stage: str, config: Any, seconds: float, startup_s: float) -> Any:
        ran.append(config)
        if config.coma.width != 16:
            raise ConfigError("nproc=1: not done after 20 s: rank 0; the ranks were ended")
        return quick(recipe, stage, config, seconds, startup_s)

    result = audited("`detect_anomaly=false` makes training faster.", slow, recipe="uav")
    assert [config.coma.width == 16 for config in ran[:2]] == [False, True]
    assert result.verdicts[0].verdict == "no-effect" and "(variant smoke)" in result.evidence[0]


def test_a_switch_is_compared_with_its_opposite() -> None:
    """The default of detect_anomaly is false already, so the sentence must not call true the default."""
    result = audited("`detect_anomaly=false` makes training faster.", Runs(rate=lambda config: 10.0), recipe="uav")
    assert "`detect_anomaly=false` compared with `True`" in result.evidence[0]
    assert "default" not in result.evidence[0]


def test_a_run_that_fails_is_reported() -> None:
    def failing(*arguments: Any) -> Any:
        raise ConfigError("the simulator does not start")

    result = audited(GUIDE, failing)
    assert {v.reason for v in result.verdicts} == {"failed"}
    assert "the simulator does not start" in result.markdown


def test_ctrl_c_prints_what_is_known() -> None:
    quick = Runs(rate=lambda config: 10.0)

    def interrupted(*arguments: Any) -> Any:
        if len(quick.configs) == 2 * MIN_PAIRS + 1:
            raise KeyboardInterrupt
        return quick(*arguments)

    result = audited(GUIDE, interrupted)
    assert not result.complete
    assert [v.verdict for v in result.verdicts] == ["refuted", "not-measurable", "no-effect"]
    assert "the audit was interrupted before" in result.markdown


def test_two_pairs_are_too_few_for_an_interval() -> None:
    quick = Runs(rate=lambda config: 30.0 if config.off_policy.update_interval == 10 else 10.0)

    def ends_early(*arguments: Any) -> Any:
        if len(quick.configs) == 5:
            raise KeyboardInterrupt
        return quick(*arguments)

    verdict, *_ = (result := audited(GUIDE, ends_early)).verdicts
    assert (verdict.verdict, verdict.reason) == ("not-measurable", "budget")
    assert "too few pairs of runs (2) fit into 60 s; their mean for the steps per second is 2.96x" in result.evidence[0]


def test_a_value_that_the_configuration_refuses_is_refused() -> None:
    verdict = audited("`update_interval=-3` makes training faster.", recipe="snakes").verdicts[0]
    assert verdict.verdict == "refused" and "-3 is below 1" in verdict.detail


def test_a_module_that_a_guide_names_is_not_imported() -> None:
    runs = Runs(rate=lambda config: 10.0)
    result = audited("`env_id=evil_module:Env-v0` makes training 2x faster.", runs, recipe="gym")
    verdict = result.verdicts[0]
    assert verdict.verdict == "refused" and "names a module" in verdict.detail and not runs.configs


@pytest.mark.parametrize(
    "text", ["设置update_interval=10可能更快", "`update_interval=10`：更快", "更快：--update_interval 10。"]
)
def test_a_value_ends_at_chinese_text(text: str) -> None:
    claim = audited(text, recipe="snakes").verdicts[0].claim
    assert (claim.option, claim.value) == ("update_interval", "10")


def test_a_command_of_powerband_resolves_without_its_recipe() -> None:
    guide = "# snakes\n\n```bash\npowerband train snakes --trust update_interval=10\n```\n"
    (_, found) = audited(guide).commands[0]
    assert found.status == "notice" and "implies algo=ddpg" in found.message


def test_a_value_that_is_the_default_is_not_measured() -> None:
    runs = Runs(rate=lambda config: 10.0)
    result = audited("`update_interval=1` makes training faster.", runs, recipe="snakes")
    assert result.verdicts[0].reason == "same" and not runs.configs


def test_windows_line_ends_and_a_missing_last_one_stay() -> None:
    text = "# snakes\r\n\r\n`update_interval=10` is faster."
    written = audited(text, recipe="snakes").markdown
    assert written.startswith(text + "\r\n\r\n> powerband: ")
    assert "\n" not in written.replace("\r\n", "")


def test_a_second_audit_finds_the_same_claims() -> None:
    first = audited(GUIDE)
    assert len(audited(first.markdown).verdicts) == len(first.verdicts)


def test_a_guide_of_no_recipe_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"Write recipe=NAME, one of uav, snakes"):
        audited("# Cooking\n\nMore salt is 2x faster.\n")


def test_a_guide_without_claims_has_none() -> None:
    result = audited("# snakes\n\n```bash\npython main.py --update_interval 10\n```\n")
    assert result.verdicts == [] and "0 claims: 0." in result.markdown


def test_a_large_guide_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "guide.md"
    path.write_bytes(b"x" * 10 * 2**20)
    with pytest.raises(ConfigError, match=r"10.0 MiB; a guide has at most 2 MiB"):
        read_guide(path)


@pytest.mark.slow
def test_the_largest_guide_is_read(tmp_path: Path) -> None:
    path = tmp_path / "guide.md"
    path.write_text(GUIDE * (MAX_BYTES // len(GUIDE)))
    text = read_guide(path)
    assert len(blocks_of(text.splitlines())) > 10_000
    assert len(audited(text, recipe="snakes").verdicts) == MAX_CLAIMS


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", None])
def test_a_file_that_is_no_text_is_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "guide.md"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match="Name a Markdown file"):
        read_guide(path)


@pytest.mark.parametrize(
    ("direction", "low", "high", "ratio", "expected"),
    [
        (1, 3.0, 3.0, (1.03, 0.98, 1.07), "refuted"),
        (1, 3.0, 3.0, (2.9, 2.8, 3.0), "confirmed"),
        (1, 3.0, 3.0, (2.5, 1.0, 5.0), "not-measurable"),
        (1, 0.0, 0.0, (1.0, 0.98, 1.02), "no-effect"),
        (1, 0.0, 0.0, (1.2, 1.1, 1.3), "confirmed"),
        (1, 0.0, 0.0, (0.8, 0.7, 0.9), "refuted"),
        (1, 0.0, 0.0, (1.2, 0.8, 1.8), "not-measurable"),
        (-1, 0.0, 0.0, (0.8, 0.7, 0.9), "confirmed"),
        (-1, 0.5, 0.5, (0.5, 0.48, 0.52), "confirmed"),
        (-1, 0.1, 0.1, (1.0, 1.0, 1.0), "refuted"),
        (0, 0.0, 0.0, (1.0, 0.98, 1.02), "confirmed"),
        (0, 0.0, 0.0, (1.5, 1.4, 1.6), "refuted"),
    ],
)
def test_a_promise_is_compared_with_an_interval(
    direction: int, low: float, high: float, ratio: tuple[float, float, float], expected: str
) -> None:
    assert verdict_of(direction, low, high, ratio) == expected
