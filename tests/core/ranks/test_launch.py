"""Launch: the decision to start ranks, and runs with two CPU ranks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from powerband.core.config import RunConfig
from powerband.core.errors import ConfigError
from powerband.core.ranks import launch, restarts
from powerband.core.ranks.rendezvous import Endpoint

SOURCE = Path(launch.__file__).parents[2]
SITE = """
import json, os, pathlib, signal, sys, time
import powerband.cli.main as cli
from powerband.core.config import RunConfig
from powerband.core.ranks.launch import launch


def ranks(arguments):
    folder, behaviour = pathlib.Path(arguments[0]), arguments[1]
    status = launch(RunConfig(gpus="none", nproc=2, threads=1, resume="runs/a"), ["ranks", *arguments])
    if status is not None:
        return status
    rank = os.environ["RANK"]
    if behaviour == "fail" and rank == "1":
        return 3
    if behaviour == "killed" and rank == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    if behaviour != "end":
        def save(number, frame):
            (folder / f"saved{rank}").write_text(str(number))
            sys.exit(0)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            signal.signal(number, save)
    (folder / f"facts{rank}.tmp").write_text(json.dumps(dict(os.environ)))
    (folder / f"facts{rank}.tmp").rename(folder / f"facts{rank}")
    if behaviour != "end":
        for _ in range(1200):  # a signal right before a long sleep would be handled after it only
            time.sleep(0.05)
    return 0


cli.COMMANDS["ranks"] = (ranks, "", "")
"""


def start(folder: Path, behaviour: str) -> subprocess.Popen:
    site = folder / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(SITE)
    drop = ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "OMP_NUM_THREADS")
    environment = {name: value for name, value in os.environ.items() if name not in drop}
    environment["PYTHONPATH"] = os.pathsep.join([str(site), str(SOURCE)])
    (folder / "powerband.py").write_text("raise SystemExit('imported from the current folder')")
    command = [sys.executable, "-P", "-m", "powerband", "ranks", str(folder), behaviour]
    return subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True)


def test_two_cpu_ranks_are_started_with_their_share_of_the_threads(tmp_path: Path) -> None:
    process = start(tmp_path, "end")
    assert process.wait(120) == 0, process.stderr.read()
    facts = [json.loads((tmp_path / f"facts{rank}").read_text()) for rank in (0, 1)]
    assert [fact["RANK"] for fact in facts] == [fact["LOCAL_RANK"] for fact in facts] == ["0", "1"]
    assert all(fact["WORLD_SIZE"] == "2" and fact["OMP_WAIT_POLICY"] == "passive" for fact in facts)
    assert all(fact[restarts.RESUMED] == str(tmp_path / "runs" / "a") for fact in facts), "all resume the same run"
    assert all(fact["OMP_NUM_THREADS"] == fact["NUMBA_NUM_THREADS"] == "1" for fact in facts)


@pytest.mark.parametrize(("behaviour", "status", "message"), [("fail", 3, "status 3"), ("killed", 137, "SIGKILL")])
def test_a_rank_that_fails_ends_the_others_and_determines_the_status(
    tmp_path: Path, behaviour: str, status: int, message: str
) -> None:
    process = start(tmp_path, behaviour)
    _, error = process.communicate(timeout=120)
    assert process.returncode == status, error
    assert "rank 1" in error and message in error and "Traceback" not in error


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGUSR1, pytest.param(signal.SIGINT, marks=pytest.mark.slow)]
)
def test_a_signal_reaches_the_ranks_so_that_they_save(tmp_path: Path, number: signal.Signals) -> None:
    process = start(tmp_path, "wait")
    deadline = time.monotonic() + 100
    while not all((tmp_path / f"facts{rank}").exists() for rank in (0, 1)):
        assert process.poll() is None and time.monotonic() < deadline, process.stderr.read()
        time.sleep(0.05)
    process.send_signal(number)
    _, error = process.communicate(timeout=100)
    assert process.returncode == 128 + number, error
    assert "Traceback" not in error, error
    assert [(tmp_path / f"saved{rank}").read_text() for rank in (0, 1)] == [str(int(number))] * 2


# -- the decision -------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


def test_a_single_rank_is_this_process() -> None:
    assert launch.launch(RunConfig(gpus="none"), []) is None
    assert launch.world_size(RunConfig(gpus="none", nproc=2, nnodes="1:3", rdzv_endpoint="a:1")) == 6


def test_a_rank_of_a_launcher_starts_no_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert launch.launch(RunConfig(gpus="none", nproc=2), []) is None
    assert launch.world_size(RunConfig(gpus="none", nproc=8)) == 2
    assert not launch.is_leading_process()


def test_several_machines_require_a_rendezvous_address() -> None:
    with pytest.raises(ConfigError, match="rdzv_endpoint=HOST:29500"):
        launch.launch(RunConfig(gpus="none", nnodes="2"), [])


def test_a_task_of_srun_is_a_rank() -> None:
    environment = {
        "SLURM_NTASKS": "5",
        "SLURM_PROCID": "3",
        "SLURM_LOCALID": "1",
        "SLURM_NODEID": "1",
        "SLURM_STEP_ID": "0",
        "SLURM_TASKS_PER_NODE": "2(x2),1",
        "SLURM_JOB_NODELIST": "gpu[03-04,9],other",
        "SLURM_JOB_ID": "4711",
    }
    assert launch.set_rank_from_slurm(environment) == ""
    assert launch.is_rank(environment)
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    assert [environment[name] for name in names] == ["3", "1", "5", "2", "gpu03", "24711"]


def test_steps_of_one_slurm_job_meet_at_ports_of_their_own() -> None:
    common = {"SLURM_NTASKS": "2", "SLURM_PROCID": "0", "SLURM_JOB_ID": "4711", "SLURM_JOB_NODELIST": "a"}
    steps = [{**common, "SLURM_STEP_ID": str(step)} for step in (0, 1, 1)]
    assert [launch.set_rank_from_slurm(step) for step in steps] == [""] * 3
    ports = [step["MASTER_PORT"] for step in steps]
    assert ports[0] != ports[1] == ports[2]


def test_a_rank_ends_if_its_launcher_was_killed_before_the_rank_began(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "signal_at_parent_death", lambda number: None)
    variables = {"TORCHELASTIC_RUN_ID": "a", restarts.LAUNCHER: str(os.getppid())}
    launch.end_with_launcher(variables)
    assert restarts.LAUNCHER not in variables, "processes that the rank starts have another parent"
    with pytest.raises(SystemExit) as ended:
        launch.end_with_launcher({**variables, restarts.LAUNCHER: "1000000000"})
    assert ended.value.code == 143


def test_a_signal_ends_machines_that_look_for_a_new_meeting_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's handlers of signals, which raise this exception, stay after its launcher has ended."""
    from torch.distributed.elastic.multiprocessing import SignalException

    def meet(text: str, lost: int, patience_s: float) -> tuple[int, Endpoint]:
        if lost >= 0:
            raise SignalException("SIGTERM", sigval=signal.SIGTERM)
        return 0, Endpoint("there", 1, "192.0.2.1", hosted_here=False, own_address="192.0.2.2")

    def lose(*settings: object) -> int:
        raise launch.EndpointLost("there:1")

    monkeypatch.setattr(launch, "find_meeting_place", meet)
    monkeypatch.setattr(launch, "_elastic", lose)
    monkeypatch.setattr(os, "environ", os.environ.copy())
    settings = RunConfig(gpus="none", nnodes="1:2", rdzv_endpoint="there:1", max_restarts=2, stall_s=0, run_dir="run")
    assert launch.launch(settings, []) == 143


def test_a_batch_script_without_srun_is_not_a_rank() -> None:
    environment = {"SLURM_NTASKS": "5", "SLURM_PROCID": "0"}
    assert "srun" in launch.set_rank_from_slurm(environment)
    assert not launch.is_rank(environment)
    assert launch.set_rank_from_slurm({"SLURM_NTASKS": "1", "SLURM_PROCID": "0", "SLURM_STEP_ID": "0"}) == ""
    assert launch.set_rank_from_slurm({}) == ""
