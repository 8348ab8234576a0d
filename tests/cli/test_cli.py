"""The command line from the outside: what is printed where, and the exit status. The recipe is a toy."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import powerband
from powerband.cli import catalogue, measure_commands
from powerband.cli import main as cli
from powerband.core.config import RunConfig, to_json
from powerband.core.errors import ConfigError
from powerband.core.recipe import Algorithm, Recipe
from powerband.doctor.subprocess_call import call_in_subprocess

STAGED: list[Any] = []


@dataclass(frozen=True)
class Loop:
    update_interval: int = 1
    """Transitions between two updates."""


@dataclass(frozen=True)
class Settings:
    lr: float = 1e-3
    """Learning rate."""


@dataclass(frozen=True)
class Config:
    algo: str = "one"
    """The algorithm."""
    run: RunConfig = field(default_factory=lambda: RunConfig(gpus="none", env_steps=100))
    loop: Loop = field(default_factory=Loop)


@dataclass(frozen=True)
class Evaluation:
    episodes: int = 100
    """Episodes to play."""


def first(config: Any, run: Any) -> None:
    print("training")
    STAGED.append(("first", config))
    run.env_steps = config.run.env_steps


def second(config: Config, run: Any) -> dict[str, float]:
    if config.algo == "two":
        raise ValueError("library words")
    STAGED.append(("second", config))
    return {"return": 1.5}


def check(config: Config, world_size: int) -> None:
    if config.loop.update_interval % world_size:
        raise ConfigError(f"update_interval={config.loop.update_interval} does not suit {world_size} ranks. Write 2.")


class FakeRun:
    """Stands for core.run.Run: records what it was started with."""

    started: dict[str, Any] = {}
    exit_status = 0

    def __init__(self, config: Config) -> None:
        self.config, self.dir = config, Path(config.run.run_dir)
        self.env_steps, self.grad_steps = 0, 0

    @classmethod
    def start(cls, config: Config, **facts: Any) -> FakeRun:
        cls.started = facts
        return cls(config)

    def __enter__(self) -> FakeRun:
        return self

    def describe(self, rows: dict[str, str]) -> None:
        self.started["banner"] = rows

    def __exit__(self, *error: Any) -> None:
        pass


@pytest.fixture(autouse=True)
def toy(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    recipe = Recipe(
        name="toy",
        summary="a toy recipe",
        Config=Config,
        stages={"first": first, "second": second},
        algorithms={
            "one": Algorithm("toy:Learner", Settings(), "off_policy"),
            "two": Algorithm("toy:Learner", Settings(), "off_policy"),
        },
        variants={"demo": {"update_interval": 10}},
        old_names={"old_interval": "update_interval"},
        check=check,
        Evaluation=Evaluation,
        evaluate=lambda config, folder, options: [{"episodes": options.episodes, "algo": config.algo}],
    )
    module = types.ModuleType("powerband.recipes.toy")
    module.RECIPE = recipe
    run = types.ModuleType("powerband.core.run.run")
    run.Run = FakeRun
    monkeypatch.setitem(sys.modules, "powerband.recipes.toy", module)
    monkeypatch.setitem(sys.modules, "powerband.core.run.run", run)
    monkeypatch.setattr(catalogue, "RECIPES", ("toy",))
    catalogue.load.cache_clear()
    monkeypatch.setattr(measure_commands, "BENCHMARKS", {})
    for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    STAGED.clear()
    yield
    catalogue.load.cache_clear()


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(to_json(Config(algo="two")))
    (tmp_path / "run.json").write_text('{"recipe": "toy"}')
    return tmp_path


def test_train_runs_the_default_stage_in_a_folder_named_after_recipe_and_variant() -> None:
    assert cli.main(["train", "toy", "variant=demo", "--seed", "3"]) == 0
    (stage, config), *_ = STAGED
    assert (stage, config.loop.update_interval, config.run.seed) == ("first", 10, 3)
    folder = FakeRun.started["new_folder"]
    assert re.fullmatch(r"runs/toy-demo-\d{8}-\d{6}-[0-9a-f]{4}", folder)
    assert cli.main(["train", "toy", "variant=demo"]) == 0 and FakeRun.started["new_folder"] != folder
    assert cli.main(["train", "toy", "variant=demo", "--seed", "3"]) == 0
    assert FakeRun.started["stage"] == "first" and FakeRun.started["recipe"] == "toy"
    assert FakeRun.started["banner"]["recipe"].startswith("toy, algo=")
    assert FakeRun.started["argv"] == ["train", "toy", "variant=demo", "--seed", "3"]


def test_train_takes_a_stage_and_prints_json_alone(capsys: pytest.CaptureFixture) -> None:
    assert cli.main(["train", "toy", "second", "--json", "run_dir=here"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["stage"] == "second" and figures["return"] == 1.5 and figures["run_dir"] == "here"
    assert cli.main(["train", "--json", "toy"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["env_steps"] == 100 and "training" in printed.err


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["trian"], ["'trian'", "Did you mean 'train'", "report"]),
        (["train"], ["powerband train RECIPE with one of", "toy", "powerband train --help"]),
        (["show"], ["powerband show RECIPE"]),
        (["train", "toi"], ["'toi'", "Did you mean 'toy'"]),
        (["train", "toy", "thrid"], ["stage of toy", "first, second"]),
        (["train", "toy", "updat_interval=3"], ["loop.update_interval", "command line"]),
        (["train", "toy", "--nproc", "2"], ["update_interval=1", "2 ranks"]),
        (["train", "toy", "gpus=99"], ["gpus=99", "gpus=none nproc=1"]),
        (["train", "toy", "resume=/nowhere"], ["/nowhere"]),
        (["show", "toy", "seed=x"], ["an integer"]),
        (["list", "toy"], ["powerband show toy"]),
        (["eval"], ["powerband eval last"]),
        (["eval", "/nowhere"], ["/nowhere"]),
        (["report"], ["powerband report runs/NAME"]),
        (["bench"], ["'bench'"]),
    ],
)
def test_what_a_user_can_put_right_is_one_line_and_status_2(
    words: list[str], parts: list[str], capsys: pytest.CaptureFixture
) -> None:
    assert cli.main(words) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.count("\n") == 1 and printed.err.startswith("powerband: ")
    assert all(part in printed.err for part in parts), printed.err
    assert not STAGED


def test_an_error_of_a_library_keeps_its_traceback() -> None:
    with pytest.raises(ValueError, match="library words"):
        cli.main(["train", "toy", "second", "algo=two"])


@pytest.mark.parametrize("arguments", [["--resume", "last"], ["env_steps=10"]])
def test_the_recipe_comes_first(arguments: list[str], capsys: pytest.CaptureFixture) -> None:
    assert cli.main(["train", *arguments]) == 2
    assert f"powerband train RECIPE {' '.join(arguments)}" in capsys.readouterr().err


def test_notices_go_to_stderr(capsys: pytest.CaptureFixture) -> None:
    assert cli.main(["train", "toy", "--old-interval", "4"]) == 0
    assert "is read as loop.update_interval." in capsys.readouterr().err


def test_help_of_a_recipe_lists_stages_variants_and_fields(capsys: pytest.CaptureFixture) -> None:
    for arguments in (["train", "toy", "--help"], ["train", "toy", "first", "-h"], ["show", "toy", "--help"]):
        assert cli.main(arguments) == 0
        text = capsys.readouterr().out
        for part in ("a toy recipe", "first (default), second", "demo", "loop.update_interval=1", "one of one, two"):
            assert part in text
        assert "Transitions between two updates." in text and "\nrun\n" in text
    assert not STAGED


def test_help_of_train_states_the_common_options_first(capsys: pytest.CaptureFixture) -> None:
    assert cli.main(["train", "--help"]) == 0
    text = capsys.readouterr().out
    places = [text.index(f"\n  {name}=") for name in ("env_steps", "time_limit_s", "run_dir", "seed", "threads")]
    assert max(places) < text.index("recipes:")


def test_help_lists_only_what_is_available(capsys: pytest.CaptureFixture) -> None:
    for arguments in ([], ["--help"], ["help"], ["train", "--help"]):
        assert cli.main(arguments) == 0
        text = capsys.readouterr().out
        assert "toy" in text and "bench" not in text


def test_show_names_the_source_of_each_value(capsys: pytest.CaptureFixture) -> None:
    assert cli.main(["show", "toy", "variant=demo", "seed=4"]) == 0
    lines = {line.split()[0]: re.split("  +", line)[1:] for line in capsys.readouterr().out.splitlines()}
    assert lines["loop.update_interval"] == ["10", "variant demo"]
    assert lines["run.seed"] == ["4", "0 or more", "command line"] and lines["run.nproc"] == ["1", "1 to 1024"]
    assert cli.main(["show", "toy", "variant=demo", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["config"]["loop"]["update_interval"] == 10 and shown["sources"]["run.seed"] == "default"


def test_list(capsys: pytest.CaptureFixture, tmp_path: Path) -> None:
    assert cli.main(["list"]) == 0
    assert "stages: first, second; variants: demo" in capsys.readouterr().out
    assert cli.main(["list", "--json", str(tmp_path / "list.json")]) == 0
    assert capsys.readouterr().out == ""
    assert json.loads((tmp_path / "list.json").read_text())["recipes"]["toy"]["variants"] == ["demo"]


def test_eval_hands_the_saved_configuration_to_the_recipe(run_folder: Path, capsys: pytest.CaptureFixture) -> None:
    assert cli.main(["eval", str(run_folder), "--episodes", "7", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [{"episodes": 7, "algo": "two"}]
    assert cli.main(["eval", str(run_folder), "--help"]) == 0
    assert "episodes=100" in capsys.readouterr().out
    assert cli.main(["eval", str(run_folder), "episode=7"]) == 2


@pytest.mark.parametrize("command", ["eval", "report", "watch", "list"])
def test_help_needs_no_run(command: str, capsys: pytest.CaptureFixture) -> None:
    assert cli.main([command, "--help"]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith(f"powerband {command}") and printed.err == ""


def test_a_resumed_run_continues_its_own_stage(run_folder: Path) -> None:
    (run_folder / "run.json").write_text('{"recipe": "toy", "stage": "second"}')
    assert catalogue.configure("toy", [f"resume={run_folder}"])[1] == "second"
    assert catalogue.configure("toy", ["first", f"resume={run_folder}"])[1] == "first"
    (run_folder / "run.json").write_text('{"recipe": "toy", "stage": "removed"}')
    assert catalogue.configure("toy", [f"resume={run_folder}"])[1] == "first"


def test_a_run_of_another_recipe_is_not_resumed(run_folder: Path, capsys: pytest.CaptureFixture) -> None:
    (run_folder / "run.json").write_text('{"recipe": "other"}')
    assert cli.main(["train", "toy", f"resume={run_folder}"]) == 2
    assert "a run of other, not of toy" in capsys.readouterr().err


def test_bench_runs_what_the_table_names(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    module = types.ModuleType("powerband_toy_bench")
    module.measure = lambda words, configure: {"words": words}
    monkeypatch.setitem(sys.modules, "powerband_toy_bench", module)
    monkeypatch.setitem(measure_commands.BENCHMARKS, "toy", "powerband_toy_bench:measure")
    assert cli.main(["bench", "toy", "seconds=1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"words": ["seconds=1"]}
    assert cli.main(["bench", "tay"]) == 2


def test_the_module_is_the_command() -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(powerband.__file__).parents[1])}
    command = [sys.executable, "-m", "powerband"]
    version = subprocess.run([*command, "--version"], env=environment, capture_output=True, text=True)
    assert version.stdout.strip() == f"powerband {powerband.__version__}"
    wrong = subprocess.run([*command, "train", "nothing"], env=environment, capture_output=True, text=True)
    assert wrong.returncode == 2 and "Traceback" not in wrong.stderr


def test_the_package_gives_the_phase_clock_lazily() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = powerband.Nothing


def test_modules_of_the_current_folder_are_not_imported(tmp_path: Path) -> None:
    """A run folder from someone else may contain a file with the name of a module."""
    for name in ("json", "yaml", "numpy"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported from the current folder')")
    command = [sys.executable, "-m", "powerband", "list"]
    environment = {**os.environ, "PYTHONPATH": str(Path(powerband.__file__).parents[1])}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "snakes" in done.stdout, done.stderr


def test_children_do_not_import_from_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python puts it first on ``sys.path`` with -c and -m, unless -P or -I forbids it."""
    (tmp_path / "json.py").write_text("raise SystemExit('imported from the current folder')")
    monkeypatch.chdir(tmp_path)
    assert call_in_subprocess("os:getcwd", [], timeout_s=60).value == str(tmp_path)
    package = Path(powerband.__file__).parent
    sources = [path for path in package.rglob("*.py") if "attach" not in path.parts]  # which runs scripts of users
    commands = [each for path in sources for each in re.findall(r"\[\s*sys\.executable,([^]]*)", path.read_text())]
    assert len(commands) >= 9
    unsafe = [each for each in commands if not re.match(r'\s*("-u", )?"-(P|I)', each) and "*sys.argv" not in each]
    assert not unsafe


def test_a_run_of_another_recipe_is_named_before_its_options(tmp_path, capsys):
    (tmp_path / "config.json").write_text(json.dumps({"env_id": "CartPole-v1"}))
    (tmp_path / "run.json").write_text(json.dumps({"recipe": "gym"}))
    assert cli.main(["train", "toy", f"resume={tmp_path}"]) == 2
    assert "is a run of gym, not of toy. Write powerband train gym" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["train.py"], ["python", "train.py"], ["python3.11", "train.py"]])
def test_a_script_without_dashes_is_no_recipe(words, capsys):
    assert cli.main(["profile", *words]) == 2
    assert "write two dashes before its command: powerband profile -- python train.py" in capsys.readouterr().err
