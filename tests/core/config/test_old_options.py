"""Old options: values that select a stage or several settings, options without a meaning, and implied algorithms."""

from __future__ import annotations

from powerband.core.config.flags import Flag, from_arguments
from powerband.core.config.old_options import OldOptions

OLD = OldOptions(
    names={"gone": ("", "nothing needs it"), "file": "config", "kept": "new"},
    arguments={
        "--mode=Train": "train",
        "fast-mode=true": ("compile=true precision=bf16", "both are measured"),
        "env=old": "",
    },
    implied_algo={"a_lr": "ddpg"},
)


def test_old_values_become_a_stage_settings_or_nothing() -> None:
    arguments = ["--mode=train", "--fast-mode", "env='old'", "--gone", "5", "--file", "a.yaml", "kept=1", "seed=2"]
    flags, stage, notices = OLD.rewrite(from_arguments(arguments))
    assert stage == "train"
    assert [(flag.name, flag.value) for flag in flags] == [
        ("compile", "true"),
        ("precision", "bf16"),
        ("config", "a.yaml"),
        ("kept", "1"),
        ("seed", "2"),
    ]
    assert [notice.partition(": ")[2] for notice in notices] == [
        "replaced by train.",
        "replaced by compile=true precision=bf16; both are measured.",
        "no longer needed.",
        "no effect here; nothing needs it.",
        "file is config here.",
    ]


def test_other_values_of_an_old_option_stay_as_they_are() -> None:
    flags = from_arguments(["mode=other", "env=1,2", "--list", "a", "b"])
    assert OLD.rewrite(flags) == (flags, "", [])


def test_an_option_of_the_guide_implies_its_algorithm() -> None:
    flags, (notice,) = OLD.implied(from_arguments(["seed=1", "a_lr=3"]))
    assert flags == [Flag("algo", "ddpg", "command line")] and "algo=ddpg" in notice
    assert OLD.implied(from_arguments(["seed=1"])) == ([], [])
