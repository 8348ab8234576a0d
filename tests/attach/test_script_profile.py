"""Profile of a script: its ledger, its cause and its lines, and scripts that do unusual things."""

from __future__ import annotations

import json
import os
import pty
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from powerband.attach.audit.short_run import Limits, run_short
from powerband.attach.processes import script_run
from powerband.attach.processes.launch import launch
from powerband.attach.processes.script_run import ScriptOptions
from powerband.cli.main import main
from powerband.core.errors import ConfigError

LOOP = """
import hashlib, sys, time
import gymnasium, numpy as np, torch
from torch.utils.data import DataLoader

class Slow(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    def reset(self, seed=None, options=None):
        return np.zeros(4, np.float32), {}
    def step(self, action):
        time.sleep(0.01)  # the slow line
        return np.ones(4, np.float32), 1.0, False, False, {}

torch.manual_seed(1)
torch.set_num_threads(1)
env = gymnasium.wrappers.TimeLimit(Slow(), 50)
net = torch.nn.Linear(4, 2)
optimizer = torch.optim.Adam(net.parameters())
obs, _ = env.reset()
for step in range(150):
    action = net(torch.as_tensor(obs)).argmax().item()
    obs, *_ = env.step(action)
    loss = net(torch.randn(8, 4)).square().sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in net.parameters())).hexdigest())
"""


def run(tmp_path: Path, source: str, *words: str) -> tuple[int, Path]:
    """Runs ``powerband profile`` on a script and returns (exit status, file of the profile)."""
    script, file = tmp_path / "script.py", tmp_path / "profile.json"
    script.write_text(source)
    return main(["profile", "seconds=1", *words, f"--json={file}", "--", sys.executable, str(script)]), file


def test_a_slow_environment_is_found_with_its_line_and_the_result_is_bit_identical(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    status, file = run(tmp_path, LOOP, "--keep-running")
    profile: dict[str, Any] = json.loads(file.read_text())
    out, report = capfd.readouterr()
    assert (status, profile["failures"], profile["cause"]) == (0, [], "env-bound"), report
    assert sum(profile["ledger"].values()) == pytest.approx(profile["wall_s"], rel=0.02)
    assert profile["ledger"]["other"] < 0.1 * profile["wall_s"]
    slow_line = LOOP.splitlines().index("        time.sleep(0.01)  # the slow line") + 1
    assert profile["lines"][0]["where"] == f"{tmp_path / 'script.py'}:{slow_line}"
    assert profile["advice"][0]["cause"] == "env-bound" and profile["advice"][0]["gain_at_most"] > 2
    assert 0 < profile["steps_per_s"] <= 100 and profile["steps_per_s"] == pytest.approx(
        profile["updates_per_s"], rel=0.1
    )
    with (tmp_path / "plain.txt").open("wb") as plain:
        launch([sys.executable, str(tmp_path / "script.py")], "", tmp_path, stdout=plain).wait()
    assert out == (tmp_path / "plain.txt").read_text()  # the digest alone: the report goes to stderr


def test_the_window_ends_a_script_that_would_go_on(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    status, file = run(tmp_path, "import time\nprint('began', flush=True)\nwhile True: time.sleep(0.01)", "wait=1")
    profile = json.loads(file.read_text())
    out, report = capfd.readouterr()
    assert (status, out) == (0, "began\n")
    assert "no optimiser step in the first 1 s" in report
    assert sum(profile["ledger"].values()) == pytest.approx(profile["wall_s"], rel=0.02)


BUFFERED = """
import os, time
print("before the fork")  # into a pipe, so Python buffers it
if os.fork() == 0:
    time.sleep(60)
print("own")
while True:
    time.sleep(0.01)
"""


def test_output_that_python_buffers_is_not_lost_or_repeated(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    status, _ = run(tmp_path, BUFFERED, "wait=1")
    assert (status, capfd.readouterr().out) == (0, "before the fork\nown\n")


BAD = {
    "fails": ("import time; time.sleep(0.3); raise KeyError('own error')", 1, "KeyError: 'own error'"),
    "replaces the hook of exceptions": (
        "import sys, time; time.sleep(0.3); sys.excepthook = lambda *a: sys.stderr.write('own hook'); 1 / 0",
        1,
        "own hook",
    ),
    "replaces itself": (
        "import os, sys, time\ntime.sleep(0.3)\nos.execv(sys.executable, [sys.executable, '-c', 'exit(9)'])",
        9,
        "",
    ),
    "has its own import hooks": (
        "import sys, time\nfinders = list(sys.meta_path)\n"
        "class Own:\n    def find_spec(self, *a): return None\n"
        "sys.meta_path[:] = [Own(), *finders]\nimport gymnasium.core, csv\ntime.sleep(0.3)\n"
        "assert type(csv.__loader__).__name__ == 'SourceFileLoader', csv.__loader__\n"
        "assert type(gymnasium.core.__spec__.loader).__name__ == 'SourceFileLoader'",
        0,
        "",
    ),
    "handles a signal": (
        "import os, signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *a: sys.exit(5))\ntime.sleep(0.3)\n"
        "os.kill(os.getpid(), signal.SIGTERM)\ntime.sleep(9)",
        5,
        "",
    ),
    "closes all files": (
        "import os, time\nos.closerange(3, 256)\nfile = open('own.txt', 'w')\ntime.sleep(0.8)\nfile.write('own')\n"
        "file.close()\nassert open('own.txt').read() == 'own'",
        0,
        "",
    ),
    "forks": (
        "import os, threading, time, warnings\nwarnings.simplefilter('error')\ntime.sleep(0.3)\n"
        "assert threading.active_count() == 1\nif os.fork() == 0: os._exit(3)\n"
        "assert os.waitstatus_to_exitcode(os.wait()[1]) == 3",
        0,
        "",
    ),
    "prints 100 MB": (
        "import sys, time\nfor _ in range(100): sys.stdout.write('x' * 2**20)\nsys.stdout.flush()\ntime.sleep(0.3)",
        0,
        "",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_script_that(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    source, expected, text = BAD[name]
    status, file = run(tmp_path, source)
    out, err = capfd.readouterr()
    assert status == expected, err
    assert text in err
    assert len(out) == (100 * 2**20 if name == "prints 100 MB" else 0)
    assert json.loads(file.read_text())["failures"] == []
    if name == "fails":  # its own traceback first, then one line
        assert err.index("Traceback") < err.index("powerband: the script ended with status 1 before the measurement")
        assert "advice" not in err and "too-short" not in err


def test_a_script_keeps_its_terminal(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import os\nassert os.isatty(0) and input() == 'typed'\nos._exit(4)")
    ours, theirs = pty.openpty()
    os.write(ours, b"typed\n")
    launched = launch([sys.executable, str(tmp_path / "script.py")], "profile", tmp_path, stdin=theirs)
    launched.wait()
    os.close(ours)
    os.close(theirs)
    assert launched.status == 4


def test_a_process_that_never_reports_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "wait=1", "--", sys.executable, "-I", "-c", "import time; time.sleep(2.2)"]) == 1
    assert "never reported" in capfd.readouterr().err


def test_user_errors(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "--"]) == 2
    assert "No command follows --" in capsys.readouterr().err
    assert main(["profile", "second=3", "--", "python", "train.py"]) == 2
    assert "seconds" in capsys.readouterr().err
    assert main(["profile", "--", "no-such-program"]) == 2

    def refuse(**options: Any) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tempfile, "mkdtemp", refuse)
    with pytest.raises(ConfigError, match="TMPDIR"):
        script_run.run_script([sys.executable], ScriptOptions())
    with pytest.raises(ConfigError, match="TMPDIR"):
        run_short([sys.executable], Path.cwd(), {}, Limits())


def test_a_script_ends_when_the_measurement_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "pid.txt"
    code = f"import os, time; open({str(file)!r}, 'w').write(str(os.getpid())); time.sleep(60)"

    def fail(records: Any, now_ns: int, patience_s: float) -> None:
        while not file.exists() or not file.read_text():
            time.sleep(0.05)
        raise OSError("the disk has failed")

    monkeypatch.setattr(script_run, "window_start", fail)
    with pytest.raises(OSError, match="disk"):
        script_run.run_script([sys.executable, "-c", code], ScriptOptions())
    with pytest.raises(ProcessLookupError):
        os.kill(int(file.read_text()), 0)


SPAWNED = """
import sys, time
import torch, torch.distributed as dist, torch.multiprocessing as mp
def work(rank, file):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="file://" + file, rank=rank, world_size=2)
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(30):
        time.sleep(0.02)
        optimizer.zero_grad()
        net(torch.ones(8, 4)).sum().backward()
        optimizer.step()
    dist.destroy_process_group()
if __name__ == "__main__":
    mp.spawn(work, (sys.argv[0] + ".group",), 2)
"""


@pytest.mark.slow
def test_spawned_ranks_are_recognised_without_a_variable(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    status, file = run(tmp_path, SPAWNED, "--keep-running")
    profile = json.loads(file.read_text())
    assert (status, profile["failures"], len(profile["ranks"])) == (0, [], 2), capfd.readouterr().err
    assert sorted(each["rank"] for each in profile["processes"] if each["updates"]) == ["0", "1"]
