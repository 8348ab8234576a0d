"""Order of the runs, budget, failures, Ctrl-C; and ``powerband profile --try`` on real scripts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from powerband.attach.findings import script_profile
from powerband.attach.processes.script_run import ScriptOptions
from powerband.attach.schemas import NAMES, schema
from powerband.attach.trial import trials
from powerband.attach.trial.change import Change, Permanent
from powerband.attach.trial.observed import observed
from powerband.attach.trial.plausible import plausible_changes
from powerband.attach.trial.trial_run import TrialRun, first_run, timed_run
from powerband.attach.trial.trials import Trials
from powerband.attach.trial.work import Work
from powerband.cli.main import main
from powerband.tune.measure.ledger import Ledger

FAST = Change("num_workers", 2, "two workers", 1.0, 0.9, permanent=Permanent(sentence="Write it."))
SLOW = Change("threads", 1, "one thread", 0.5, 0.3)
BROKEN = Change("compile", True, "compile", 0.4, None, True)
RATES = {None: 100.0, "num_workers": 150.0, "threads": 90.0}


def tried(
    monkeypatch: pytest.MonkeyPatch, changes: list[Change], progress: Callable[[str, float], None], budget: float = 900
) -> tuple[Trials, dict[str, Any], list[str]]:
    """Runs trials with given rates. Returns them, the result by name, and the order of the runs."""
    order: list[str] = []

    def timed_run(command: Any, source: Any, change: Change | None, work: Any, start_up_s: float) -> TrialRun:
        name = change.name if change else None
        order.append(name or "-")
        return TrialRun(RATES[name], "") if name in RATES else TrialRun(None, "KeyError: 'own'")

    monkeypatch.setattr(trials, "timed_run", timed_run)
    found = Trials(["python"], Path("."), Work("updates", 1, 9, 4.0), 3.0, 0.5, ScriptOptions(try_budget=budget))
    result = found.run(changes, progress)
    return found, {each.change.name: each for each in result.tried}, order


def test_runs_are_interleaved_and_a_failing_change_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    _, found, order = tried(monkeypatch, [FAST, BROKEN, SLOW], lambda text, share: None)
    assert order == ["-", "num_workers", "-", "compile", "-", "threads"] + 2 * ["-", "num_workers", "-", "threads"] + [
        "-"
    ]
    assert {name: each.verdict for name, each in found.items()} == {
        "num_workers": "gain", "threads": "slower", "compile": "failed",
    }  # fmt: skip
    assert list(found) == ["num_workers", "threads", "compile"] and found["compile"].error == "KeyError: 'own'"
    assert found["num_workers"].gain is not None and found["num_workers"].gain.gain == pytest.approx(0.5)


def test_an_interrupt_keeps_what_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    shares: list[float] = []

    def interrupt(text: str, share: float) -> None:
        shares.append(share)
        if len(shares) == 4:
            raise KeyboardInterrupt

    found, result, order = tried(monkeypatch, [FAST, SLOW], interrupt)
    assert order == ["-", "num_workers", "-"] and shares == sorted(shares)
    assert {name: each.verdict for name, each in result.items()} == {
        "num_workers": "unfinished",
        "threads": "unfinished",
    }
    assert result["num_workers"].gain.gain == pytest.approx(0.5) and result["threads"].gain is None
    assert "interrupted" in found.notes[0]


def test_unchanged_runs_that_differ_give_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    steady, _, _ = tried(monkeypatch, [FAST], lambda text, share: None)
    rates = iter([100.0, 40.0, 100.0, 100.0])
    monkeypatch.setattr(trials, "timed_run", lambda a, b, change, c, d: TrialRun(150.0 if change else next(rates), ""))
    unsteady = Trials(["python"], Path("."), Work("updates", 1, 9, 4.0), 3.0, 0.5, ScriptOptions())
    unsteady.run([FAST], lambda text, share: None)
    assert steady.notes == [] and "factor of 2.50" in unsteady.notes[0]


def test_a_budget_leaves_out_the_least_promising_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    found, result, _ = tried(monkeypatch, [FAST, SLOW], lambda text, share: None, budget=80)
    assert list(result) == ["num_workers"] and "one thread" in found.notes[0]


WAITING = """
import sys, time, torch
from torch.utils.data import DataLoader, Dataset
class Slow(Dataset):
    def __len__(self):
        return 100_000
    def __getitem__(self, index):
        time.sleep(0.01)
        return torch.ones(8)
torch.set_num_threads(1)
open("written.txt", "w").write(sys.argv[1])
loader = DataLoader(Slow(), batch_size=8)
net = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(net.parameters(), 1e-3)
for batch in loader:
    optimizer.zero_grad()
    net(batch).square().mean().backward()
    optimizer.step()
"""


@pytest.mark.slow
def test_the_profile_observes_the_loader_that_is_waited_for(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(WAITING)
    run = first_run([sys.executable, "train.py", "own"], tmp_path, ScriptOptions(seconds=1.5))
    profile = script_profile(["python"], run)
    assert profile is not None and not [path for path in tmp_path.iterdir() if path.name != "train.py"]
    figures = observed(profile.ranks[0], profile.processes, run.start_ns, run.end_ns, 2)
    (loader,) = figures.loaders
    line = WAITING.splitlines().index("loader = DataLoader(Slow(), batch_size=8)") + 1
    assert loader.where == f"{tmp_path / 'train.py'}:{line}" and not loader.iterable
    assert loader.batches == pytest.approx(figures.updates, abs=1) and loader.num_workers == 0
    assert loader.wait_s > 0.5 * figures.wall_s
    assert [change.name for change in plausible_changes(figures, False)][0] == "num_workers"


STEPPING = """
import time
import gymnasium as gym, numpy as np
class Slow(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (4,), np.float32)
    action_space = gym.spaces.Discrete(2)
    def reset(self, seed=None, options=None):
        return np.zeros(4, np.float32), {}
    def step(self, action):
        time.sleep(0.01)
        return np.ones(4, np.float32), 1.0, False, False, {}
if __name__ == "__main__":
    open("written.txt", "w").write("own")
    envs = gym.vector.SyncVectorEnv([Slow] * 4)
    envs.reset()
    while True:
        envs.step(np.zeros(4, int))
"""


@pytest.mark.parametrize("unit", ["env_steps", pytest.param("updates", marks=pytest.mark.slow)])
def test_a_run_ends_after_its_work(tmp_path: Path, unit: str) -> None:
    (tmp_path / "train.py").write_text(STEPPING if unit == "env_steps" else WAITING)
    run = timed_run([sys.executable, "train.py", "own"], tmp_path, None, Work(unit, 8, 40, 1.0), 1.0)
    assert run.error == "" and run.rate is not None and run.rate > 0


@pytest.mark.slow
@pytest.mark.timed
def test_slow_environments_gain_by_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(STEPPING)
    arguments = [
        "profile",
        "seconds=4",
        "wait=4",
        "--try",
        "--env",
        "try_seconds=1",
        "page=page.html",
        "--json=profile.json",
    ]
    assert main([*arguments, "--", sys.executable, "train.py"]) == 0
    out, report = capfd.readouterr()
    profile = json.loads((tmp_path / "profile.json").read_text())
    jsonschema.Draft202012Validator(schema("profile")).validate(profile)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page.html", "profile.json", "train.py"]
    assert "Tried changes" in (tmp_path / "page.html").read_text()
    (change,) = profile["tried"]
    assert (change["name"], change["value"], change["verdict"]) == ("vector_env", "async", "gain"), report
    assert change["interval"][0] > 0 and len(change["rates"]) == change["runs"] == 3 and not change["numerics"]
    assert "+    envs = gym.vector.AsyncVectorEnv([Slow] * 4)" in out and change["permanent"]["diff"] in out
    assert profile["tried_unit"] == "env_steps" and len(profile["unchanged_rates"]) == 4
    assert "tried changes" in report and "run 1 of 7" in report
    assert profile["failures"] == []


def test_ctrl_c_prints_what_is_known(tmp_path: Path) -> None:
    """The only test of whole trials that is not slow, so that every run of the tests contains some."""
    (tmp_path / "train.py").write_text(STEPPING)
    arguments = [
        "profile",
        "seconds=4",
        "wait=1",
        "--try",
        "try_seconds=1",
        "--json=profile.json",
        "--",
        sys.executable,
    ]
    command = [sys.executable, "-m", "powerband", *arguments, "train.py"]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line)
            if "run 3 of 7" in line:  # as a terminal does, for the whole group
                os.killpg(process.pid, signal.SIGINT)
        assert process.wait(60) == 0, "".join(lines)
    (change,) = json.loads((tmp_path / "profile.json").read_text())["tried"]
    assert change["verdict"] == "unfinished" and change["runs"] == 1 and change["interval"] is None, "".join(lines)
    assert change["realised"] > 0 and any("interrupted" in line for line in lines)


@pytest.mark.slow
def test_a_loader_without_workers_gains_by_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(WAITING)
    arguments = ["profile", "seconds=3", "--try", "--env", "try_seconds=1", "try_budget=120", "--json=profile.json"]
    assert main([*arguments, "--", sys.executable, "train.py", "own"]) == 0
    out, report = capfd.readouterr()
    profile = json.loads((tmp_path / "profile.json").read_text())
    jsonschema.Draft202012Validator(schema("profile")).validate(profile)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["profile.json", "train.py"]
    best = profile["tried"][0]
    assert best["name"] == "num_workers" and best["verdict"] == "gain", report
    assert best["interval"][0] > 0.3 and len(best["rates"]) == best["runs"] == 3 and not best["numerics"]
    assert f"+loader = DataLoader(Slow(), batch_size=8, num_workers={best['value']})" in out
    assert "data-wait" in report and "tried changes" in report and "run 1 of" in report
    assert profile["failures"] == []


FALLING = "import os, signal, time\ntime.sleep(0.5)\nraise KeyError('own')"


def test_a_script_that_fails_is_not_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(FALLING)
    assert main(["profile", "seconds=1", "--try", "--", sys.executable, "train.py"]) == 1
    assert "KeyError: 'own'" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--allow-numerics"], "--allow-numerics acts with --try only"),
        (["--env"], "--env acts with --try only"),
        (["--try", "--keep-running"], "Leave one out"),
        (["--try", "try_runs=2"], "2 is below 3"),
    ],
)
def test_user_errors(words: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", *words, "--", sys.executable, "-c", "pass"]) == 2
    assert text in capsys.readouterr().err


def test_a_script_that_writes_outside_its_folder_is_a_user_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    folder, outside = tmp_path / "work", tmp_path / "outside.txt"
    folder.mkdir()
    monkeypatch.chdir(folder)
    (folder / "train.py").write_text(f"import time; time.sleep(0.3); open({str(outside)!r}, 'w')")
    assert main(["profile", "seconds=1", "--try", "--", sys.executable, "train.py"]) == 2
    assert str(outside) in capfd.readouterr().err and not outside.exists()


def test_schemas_are_valid_and_refuse_other_objects() -> None:
    for name in NAMES:
        jsonschema.Draft202012Validator.check_schema(schema(name))
        assert not jsonschema.Draft202012Validator(schema(name)).is_valid({"command": []})


def test_the_schema_of_a_profile_has_the_fields_of_a_ledger() -> None:
    """The slow tests validate complete profiles; this one fails at once if a field is new."""
    assert schema("profile")["$defs"]["ledger"]["properties"].keys() == {field.name for field in fields(Ledger)}


def test_the_output_of_an_audit_fits_its_schema(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--dead', type=int, default=3)\n"
        "parser.parse_args()\nprint('ran')\n"
    )
    command = [sys.executable, "-m", "powerband", "audit", "seconds=60", "--json=audit.json", "--", sys.executable]
    done = subprocess.run([*command, "train.py"], cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    value = json.loads((tmp_path / "audit.json").read_text())
    jsonschema.Draft202012Validator(schema("audit")).validate(value)
    assert value["options"][0]["verdict"] == "never-read"
