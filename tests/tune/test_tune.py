"""`powerband tune` on the command line: its preset, the conditions for loading it, and invalid input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import runs
from powerband.cli import main as cli
from powerband.core.config.presets import TunedKey, hardware_fingerprint, user_presets
from powerband.tune.search import fitting, search, verification

ARGUMENTS = [*runs.SMALL["cartpole"][1:], "num_workers=0", "tensorboard=false", "gpus=none"]


@pytest.fixture
def preset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Writes a preset for gym env_id=Pendulum-v1 algo=ppo as `tune` does on this machine."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    user_presets().mkdir(parents=True)
    path = user_presets() / "tuned-gym-Pendulum-v1-ppo.yaml"
    header = {"words": "gym algo=ppo", "gain": "1.5 times", **hardware_fingerprint()}
    header |= TunedKey("gym", "Pendulum-v1", "ppo").header()
    lines = ["tuned:", *(f"  {name}: {json.dumps(value)}" for name, value in header.items()), "run:", "  threads: 1"]
    path.write_text("\n".join([*lines, "on_policy:", "  minibatches: 8"]) + "\n")
    return path


def show(capsys, *arguments: str) -> dict:
    assert cli.main(["show", "gym", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.usefixtures("short_budgets")
def test_search_writes_a_preset_and_a_page(tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    for module, name in ((search, "BASE_S"), (fitting, "PROBE_S"), (search, "VERIFY_S")):
        monkeypatch.setattr(module, name, 0.5)
    monkeypatch.setattr(verification, "MAX_ROUNDS", 2)
    report = tmp_path / "tuning.json"
    assert cli.main(["tune", "gym", *ARGUMENTS, "seconds=8", "learning=constant-reuse", f"--json={report}"]) == 0
    result = json.loads(report.read_text())
    assert result["rows"] and result["gain_measured"] >= 1.0
    assert {"knobs", "steps_per_s", "measured"} <= set(result["rows"][0])
    assert any(row["measured"] for row in result["rows"]) and not all(row["measured"] for row in result["rows"])
    best = max(result["verified"], key=lambda row: row["steps_per_s"])
    assert best["steps_per_s"] >= result["present"]["steps_per_s"]
    assert "<svg" in Path(result["map"]).read_text()
    text = Path(result["preset"]).read_text()
    command = next(line for line in text.splitlines() if line.startswith("# powerband train gym "))
    use = command.removeprefix("# powerband train gym ").split()
    assert text.startswith("# Learning was not measured") == result["best"]["changes_learning"]
    assert use[-1] == "setup=tuned" and ("minibatches" in result["best"]["setting"]) != ("minibatches=2" in use)
    config = show(capsys, *use)["config"]
    for knob, value in result["best"]["setting"].items():
        assert value in [
            config.get(knob),
            *(section.get(knob) for section in config.values() if isinstance(section, dict)),
        ]
    assert not list(tmp_path.glob("runs*"))


@pytest.mark.parametrize(
    "arguments", [["setup=tuned"], ["--tuned"], ["tuned=true"], ["setup=tuned-gym-Pendulum-v1-ppo"]]
)
def test_preset_is_loaded_and_the_command_line_overrides_it(preset: Path, capsys, arguments: list[str]) -> None:
    result = show(capsys, "algo=ppo", *arguments, "threads=2")
    assert result["config"]["on_policy"]["minibatches"] == 8 and result["config"]["run"]["threads"] == 2
    assert result["sources"]["on_policy.minibatches"].startswith(str(preset))
    assert "measured" in " ".join(result["notices"])


def test_preset_of_another_algorithm_is_refused(preset: Path, capsys) -> None:
    assert cli.main(["show", "gym", "algo=sac", "setup=tuned"]) == 2
    assert "powerband tune gym env_id=Pendulum-v1 algo=sac" in capsys.readouterr().err
    assert cli.main(["show", "gym", "algo=sac", "setup=tuned-gym-Pendulum-v1-ppo"]) == 2
    assert "was tuned for gym env_id=Pendulum-v1 algo=ppo, but this run is gym env_id=Pendulum-v1 algo=sac" in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize("name", ["env_id", "env"])
def test_preset_of_another_task_is_refused(preset: Path, capsys, name: str) -> None:
    other = [f"{name}=Hopper-v5", "algo=ppo"]
    assert cli.main(["show", "gym", *other, "setup=tuned"]) == 2
    assert "powerband tune gym env_id=Hopper-v5 algo=ppo first" in capsys.readouterr().err
    assert cli.main(["show", "gym", *other, "setup=tuned-gym-Pendulum-v1-ppo"]) == 2
    assert "was tuned for gym env_id=Pendulum-v1 algo=ppo" in capsys.readouterr().err


def test_preset_of_an_earlier_version_is_refused_because_it_has_no_task(preset: Path, capsys) -> None:
    earlier = preset.rename(preset.with_name("tuned-gym-ppo.yaml"))
    earlier.write_text("".join(line for line in earlier.open() if not line.startswith("  task:")))
    for name in ("tuned", "tuned-gym-ppo"):
        assert cli.main(["show", "gym", "algo=ppo", f"setup={name}"]) == 2
        message = capsys.readouterr().err
        assert "earlier version" in message and "powerband tune gym env_id=Pendulum-v1 algo=ppo" in message


def test_preset_for_a_score_chooses_the_algorithm_of_its_task(preset: Path, capsys) -> None:
    lines = preset.read_text().replace('objective: "throughput"', 'objective: "score"').splitlines()
    score = preset.with_name("tuned-gym-Pendulum-v1-score.yaml")
    score.write_text("\n".join([*lines, "algo: ppo"]) + "\n")
    config = show(capsys, "setup=tuned-score")["config"]
    assert config["algo"] == "ppo" and config["on_policy"]["minibatches"] == 8
    assert cli.main(["show", "gym", "algo=sac", "setup=tuned-score"]) == 2
    assert "was tuned for gym env_id=Pendulum-v1 algo=ppo, but this run is" in capsys.readouterr().err
    assert cli.main(["show", "gym", "env_id=Hopper-v5", "setup=tuned-score"]) == 2
    assert "powerband tune gym env_id=Hopper-v5 objective=score first" in capsys.readouterr().err


def test_preset_of_another_stage_is_refused(preset: Path, capsys) -> None:
    key = TunedKey("metaworld", "door-open", "", "task", stage="student")
    header = {**key.header(), "words": key.arguments, "gain": "1.5 times", **hardware_fingerprint()}
    lines = ["tuned:", *(f"  {name}: {json.dumps(value)}" for name, value in header.items()), "run:", "  threads: 1"]
    (user_presets() / f"{key.name}.yaml").write_text("\n".join(lines) + "\n")
    assert cli.main(["show", "metaworld", "student", "task=door-open", "setup=tuned", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["config"]["run"]["threads"] == 1
    assert cli.main(["show", "metaworld", "task=door-open", "setup=tuned"]) == 2
    assert "metaworld task=door-open has no tuned preset yet" in capsys.readouterr().err
    assert cli.main(["show", "metaworld", "task=door-open", f"setup={key.name}"]) == 2
    assert "was tuned for metaworld student task=door-open, but this run is metaworld task" in capsys.readouterr().err


def test_a_file_that_overrides_the_preset_is_named(preset: Path, capsys, tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text("run:\n  threads: 2\n")
    result = show(capsys, "algo=ppo", "setup=tuned", "--config", str(file))
    assert result["config"]["run"]["threads"] == 2 and result["config"]["on_policy"]["minibatches"] == 8
    overridden = [notice for notice in result["notices"] if "overrides setup=tuned" in notice]
    assert len(overridden) == 1 and overridden[0].startswith("run.threads: ") and str(file) in overridden[0]


def test_preset_of_other_hardware_is_refused(preset: Path, capsys) -> None:
    text = preset.read_text()
    cores = next(line for line in text.splitlines() if "cores:" in line)
    preset.write_text(text.replace(cores, "  cores: 4096"))
    assert cli.main(["show", "gym", "algo=ppo", "setup=tuned"]) == 2
    message = capsys.readouterr().err
    assert "other hardware (cores: 4096 then" in message and "powerband tune gym algo=ppo again" in message
    assert message.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["seconds=1"], "1 is below 20"),
        (["learning=free"], "learning=free"),
        (["memory_gib=-2"], "memory_gib=-2"),
        (["nnodes=2", "rdzv_endpoint=a:1"], "tune does not support nnodes=2"),
        (["num_env=3"], "num_env"),
    ],
)
def test_invalid_input_gives_one_line_and_status_2(arguments: list[str], part: str, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert cli.main(["tune", "gym", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.count("\n") == 1 and part in printed.err
    assert not list(tmp_path.iterdir())
