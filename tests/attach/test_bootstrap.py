"""The bootstrap reaches all Python processes of a command, and the command behaves as without it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import powerband
from powerband.attach.processes import launch as launch_module
from powerband.attach.processes import process_tree
from powerband.attach.processes.launch import BOOTSTRAP, Launched, launch
from powerband.core.errors import ConfigError

PROCESSES = """
import multiprocessing, os, subprocess, sys, time
def work(): pass
if __name__ == "__main__":
    for how in ("fork", "spawn", "forkserver"):
        child = multiprocessing.get_context(how).Process(target=work)
        child.start(); child.join()
        assert child.exitcode == 0
    subprocess.run([sys.executable, "-I", "-c", "import time; time.sleep(2.5)"])
    if os.fork() == 0:
        os.execv(sys.executable, [sys.executable, "-c", "print('replaced')"])
    os.wait()
    sys.exit(7)
"""
UNCHANGED = """
import os, sys
assert not any("bootstrap" in path for path in sys.path), sys.path
try:
    import sitecustomize
except ImportError:
    print("no sitecustomize")
else:
    print(getattr(sitecustomize, "ORIGIN", "of the system"), sitecustomize.__file__)
"""


SLOW_TO_END = """
import signal, sys, time
def end(number, frame):
    print("got", int(number), flush=True)
    sys.exit(5)
signal.signal(signal.SIGTERM, end)
print("ready", flush=True)
for _ in range(600):  # a signal right before a long sleep would be handled after it only
    time.sleep(0.05)
"""


def run(tmp_path: Path, script: str, *flags: str, tool: str = "profile", **options: object) -> Launched:
    """Runs a script with the instrumentation until it ends."""
    file, records = tmp_path / "script.py", tmp_path / "records"
    file.write_text(script)
    records.mkdir(exist_ok=True)
    with (tmp_path / "out.txt").open("wb") as out:
        launched = launch([sys.executable, *flags, str(file)], tool, records, stdout=out, stderr=out, **options)
        launched.wait()
    return launched


def test_every_process_has_a_record_and_an_isolated_one_is_named(tmp_path: Path) -> None:
    launched = run(tmp_path, PROCESSES)
    records = launched.records()
    assert launched.status == 7, (tmp_path / "out.txt").read_text()
    assert [line for record in records for line in record.of_kind("failure")] == []
    command_lines = [" ".join(record.start["argv"]) for record in records]
    forked = [record for record in records if record.start["kind"] == "fork"]
    assert len(forked) >= 3  # by fork, by the fork server, and before exec
    assert all(record.of_kind("end") for record in forked)
    assert any("--multiprocessing-fork" in line for line in command_lines)  # spawn
    assert any("print('replaced')" in line for line in command_lines)
    assert [process.command.split(" -c ")[0] for process in launched.silent()] == [f"{sys.executable} -I"]


def test_a_script_sees_the_sitecustomize_that_it_has_without_powerband(tmp_path: Path) -> None:
    run(tmp_path, UNCHANGED)
    plain = subprocess.run([sys.executable, str(tmp_path / "script.py")], capture_output=True, text=True, check=True)
    assert (tmp_path / "out.txt").read_text() == plain.stdout  # the Python of Debian has a sitecustomize of its own
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text("ORIGIN = 'hidden'\n")
    paths = os.pathsep.join([str(hidden), os.environ.get("PYTHONPATH", "")])
    run(tmp_path, UNCHANGED, variables={"PYTHONPATH": paths})
    assert (tmp_path / "out.txt").read_text().split() == ["hidden", str(hidden / "sitecustomize.py")]


def test_a_variable_switches_it_off(tmp_path: Path) -> None:
    launched = run(tmp_path, "print('ran')", tool="")
    environment = {**os.environ, "PYTHONPATH": str(BOOTSTRAP), "POWERBAND_ATTACH": ""}
    code = "import sys; assert not any('powerband_attach' in name for name in sys.modules)"
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    assert launched.records() == []


def test_a_signal_is_passed_on_and_gives_its_status(tmp_path: Path) -> None:
    code = "from pathlib import Path; import sys; from powerband.attach.processes.launch import launch\n"
    code += (
        "script = launch([sys.executable, 'script.py'], 'profile', Path('.')); script.wait(); sys.exit(script.status)"
    )
    (tmp_path / "script.py").write_text(SLOW_TO_END)
    environment = {**os.environ, "PYTHONPATH": str(Path(powerband.__file__).parents[1])}
    outer = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, env=environment, stdout=subprocess.PIPE)
    assert outer.stdout is not None and outer.stdout.readline() == b"ready\n"
    outer.send_signal(signal.SIGTERM)  # to the outer process alone
    assert outer.communicate(timeout=30)[0] == b"got 15\n"
    assert outer.returncode == 5
    ended = run(tmp_path, "import os, signal; os.kill(os.getpid(), signal.SIGTERM)")
    assert ended.status == 143


def test_a_script_that_ignores_sigterm_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch_module, "GRACE_S", 0.5)
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True)\n"
    launched = launch([sys.executable, "-c", code + "time.sleep(30)"], "", tmp_path, stdout=subprocess.PIPE)
    assert launched.popen.stdout is not None and launched.popen.stdout.readline() == b"ready\n"
    began = time.monotonic()
    launched.end()
    assert time.monotonic() - began < 10 and launched.popen.returncode == -signal.SIGKILL


def test_a_reused_id_of_the_first_process_is_no_member(monkeypatch: pytest.MonkeyPatch) -> None:
    table = {7: (1, 100), 8: (7, 110)}  # process id -> (parent, start time)
    monkeypatch.setattr(process_tree, "_process_table", lambda: table)
    tree = process_tree.ProcessTree(7)
    tree.look()
    assert set(tree.seen) == {(7, 100), (8, 110)} and tree.alive()
    table = {7: (1, 200), 9: (7, 210)}  # another process has the id 7 now, and a child of its own
    tree.look()
    assert set(tree.seen) == {(7, 100), (8, 110)} and not tree.alive()


FAILED_EXEC = """
import os, time
try:
    os.execv("/no/such/program", ["x"])
except OSError:
    time.sleep(0.9)
    os.kill(os.getpid(), 9)
"""


def test_a_process_whose_exec_fails_is_measured_further(tmp_path: Path) -> None:
    (record,) = run(tmp_path, FAILED_EXEC).records()
    (end,) = record.of_kind("end")
    assert any(line["time_ns"] > end["time_ns"] for line in record.of_kind("times"))


FORKING_THREADS = """
import faulthandler, os, threading
faulthandler.dump_traceback_later(30, exit=True)
def fork():
    for _ in range(50):
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
threads = [threading.Thread(target=fork) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def test_two_threads_may_fork_at_the_same_time(tmp_path: Path) -> None:
    launched = run(tmp_path, FORKING_THREADS, "-W", "ignore")
    assert (launched.status, (tmp_path / "out.txt").read_text()) == (0, "")
    records = launched.records()
    assert len(records) == 101 and not any(record.of_kind("failure") for record in records)


BLOCKED_SIGNAL = """
import os, signal, time
time.sleep(0.2)  # the sampler runs
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
os.kill(os.getpid(), signal.SIGUSR1)
assert signal.sigwait({signal.SIGUSR1}) == signal.SIGUSR1
"""


def test_a_signal_that_the_script_has_blocked_stays_for_the_script(tmp_path: Path) -> None:
    assert run(tmp_path, BLOCKED_SIGNAL).status == 0


def test_a_missing_program_is_a_user_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        launch(["pythn", "train.py"], "profile", tmp_path)
