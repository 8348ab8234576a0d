"""`powerband tune` from the outside: the preset it writes, who may load it, what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import runs
from powerband import cli
from powerband.core.presets import user_presets
from powerband.tune import fitting, search, verification

WORDS = [word for word in runs.SMALL["cartpole"] if word != "gym"] + ["num_workers=0", "tensorboard=false", "gpus=none"]


@pytest.fixture
def preset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A preset as `tune` would have written it on this machine for gym algo=ppo."""
    from powerband.core.presets import fingerprint

    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    user_presets().mkdir(parents=True)
    path = user_presets() / "tuned-gym-ppo.yaml"
    header = {"recipe": "gym", "algo": "ppo", "words": "gym algo=ppo", "gain": "1.5 times", **fingerprint()}
    lines = ["tuned:", *(f"  {name}: {json.dumps(value)}" for name, value in header.items()), "run:", "  threads: 1"]
    path.write_text("\n".join([*lines, "on_policy:", "  minibatches: 8"]) + "\n")
    return path


def shown(capsys, *words: str) -> dict:
    assert cli.main(["show", "gym", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_search_writes_a_preset_that_loads_here_and_a_page(tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    for module, name in ((search, "BASE_S"), (fitting, "PROBE_S"), (search, "VERIFY_S")):
        monkeypatch.setattr(module, name, 1.0)
    monkeypatch.setattr(verification, "TURNS", 2)
    assert (
        cli.main(["tune", "gym", *WORDS, "seconds=20", "learning=constant-reuse", f"--json={tmp_path / 'f.json'}"]) == 0
    )
    found = json.loads((tmp_path / "f.json").read_text())
    assert found["rows"] and found["gain_measured"] >= 1.0
    assert {"knobs", "steps_per_s", "measured"} <= set(found["rows"][0])
    assert any(row["measured"] for row in found["rows"]) and not all(row["measured"] for row in found["rows"])
    best = max(found["verified"], key=lambda row: row["steps_per_s"])
    assert best["steps_per_s"] >= found["present"]["steps_per_s"]
    assert "<svg" in Path(found["map"]).read_text()
    text = Path(found["preset"]).read_text()
    use = text.splitlines()[0].removeprefix("# powerband train gym ").split()
    assert use[-1] == "setup=tuned" and ("minibatches" in found["best"]["setting"]) != ("minibatches=2" in use)
    config = shown(capsys, *use)["config"]
    for knob, value in found["best"]["setting"].items():
        assert value in [
            config.get(knob),
            *(section.get(knob) for section in config.values() if isinstance(section, dict)),
        ]
    assert not list(tmp_path.glob("runs*"))


@pytest.mark.parametrize("words", [["setup=tuned"], ["--tuned"], ["tuned=true"], ["setup=tuned-gym-ppo"]])
def test_it_is_loaded_and_the_command_line_wins(preset: Path, capsys, words: list[str]) -> None:
    found = shown(capsys, "algo=ppo", *words, "threads=2")
    assert found["config"]["on_policy"]["minibatches"] == 8 and found["config"]["run"]["threads"] == 2
    assert found["sources"]["on_policy.minibatches"].startswith(str(preset))
    assert "measured" in " ".join(found["notices"])


def test_another_algorithm_has_no_preset_yet(preset: Path, capsys) -> None:
    assert cli.main(["show", "gym", "algo=sac", "setup=tuned"]) == 2
    assert "powerband tune gym algo=sac" in capsys.readouterr().err
    assert cli.main(["show", "gym", "algo=sac", "setup=tuned-gym-ppo"]) == 2
    assert "was tuned for gym algo=ppo, and this is gym algo=sac" in capsys.readouterr().err


def test_other_hardware_is_refused_in_a_sentence(preset: Path, capsys) -> None:
    text = preset.read_text()
    cores = next(line for line in text.splitlines() if "cores:" in line)
    preset.write_text(text.replace(cores, "  cores: 4096"))
    assert cli.main(["show", "gym", "algo=ppo", "setup=tuned"]) == 2
    said = capsys.readouterr().err
    assert "other hardware (cores 4096 then" in said and "powerband tune gym algo=ppo" in said and said.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["seconds=1"], "seconds=1 is outside"),
        (["learning=free"], "learning=free"),
        (["memory_gib=-2"], "memory_gib=-2"),
        (["nnodes=2", "rdzv_endpoint=a:1"], "nnodes=2: tune starts"),
        (["num_env=3"], "num_env"),
    ],
)
def test_bad_input_is_one_line_and_status_2(words: list[str], part: str, capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert cli.main(["tune", "gym", *words]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.count("\n") == 1 and part in printed.err
    assert not list(tmp_path.iterdir())
