"""Faults of the soak: each disturbs a run at some instant, waits for its end, and repairs what would stop a resume."""

from __future__ import annotations

import os
import random
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

from powerband.core.machine.process_states import process_state
from powerband.core.machine.utilisation import process_tree
from powerband.core.run_folder import process_start_ticks
from powerband.core.stalls.launched_ranks import STALLED
from powerband.core.stalls.report import END_SIGNAL
from soak_environment import FILE
from soak_runs import Child, newest, ranks

Disturb = Callable[[Child, Path, random.Random], str]
"""Function (child, run folder, random numbers) -> a problem, or ""."""
END_S = 120.0
"""Seconds in which a run must end after a fault that it can notice."""
STALL_ENDS = (STALLED, -END_SIGNAL)


def kill(child: Child, run: Path, rng: random.Random) -> str:
    """SIGKILL to the process that the user has started; ranks that it has launched save and end by themselves."""
    members = ranks(run)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    return orphans(members)


def terminate(child: Child, run: Path, rng: random.Random) -> str:
    """SIGTERM: the run saves and ends with a status that stops ``&&``."""
    members, before = ranks(run), newest(run)
    os.kill(child.pid, signal.SIGTERM)
    status = child.wait(END_S)
    if status == 0:  # the last step was over
        return "" if "budget reached" in child.printed() else "SIGTERM: status 0"
    if status not in (128 + signal.SIGTERM, -signal.SIGTERM):
        return f"SIGTERM: status {status}"
    if members and status > 0 and newest(run) < max(before, 0):
        return "SIGTERM: no checkpoint"
    return orphans(members)


def damage(child: Child, run: Path, rng: random.Random) -> str:
    """SIGKILL, after which a bit of the newest checkpoint flips, or one of its files is cut."""
    problem = kill(child, run, rng)
    step = newest(run)
    if step < 0:
        return problem
    path = rng.choice(sorted(each for each in (run / "checkpoints" / str(step)).iterdir() if each.is_file()))
    data = bytearray(path.read_bytes())
    at = rng.randrange(len(data))
    if rng.random() < 0.5:
        data[at] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
    else:
        path.write_bytes(data[:at])
    if newest(run) == step:
        return f"{path.name}: damage at byte {at} is not detected"
    return problem


def stop_rank(child: Child, run: Path, rng: random.Random) -> str:
    """SIGSTOP to a rank: the watching process names it and ends the run."""
    members = ranks(run)
    if not members:  # the process may be a launcher, without which ranks train on
        return kill(child, run, rng)
    pid = rng.choice(members)[0]
    os.kill(pid, signal.SIGSTOP)
    return _stalled(child, members, pid)


def hang_simulator(child: Child, run: Path, rng: random.Random) -> str:
    """SIGSTOP to a simulator that is a process of its own."""
    members = ranks(run)
    candidates = simulators(child.pid)
    if not candidates or not members:
        return kill(child, run, rng)
    pid = rng.choice(candidates)
    os.kill(pid, signal.SIGSTOP)
    return _stalled(child, members, pid)


def lose_rank(child: Child, run: Path, rng: random.Random) -> str:
    """SIGKILL to one of several ranks: the others end, and the launcher names the lost one."""
    members = ranks(run)
    if not members:
        return kill(child, run, rng)
    os.kill(rng.choice(members)[0], signal.SIGKILL)
    status = child.wait(END_S)
    return orphans(members) if status > 0 else f"lost rank: status {status}"


def fill_disk(child: Child, run: Path, rng: random.Random) -> str:
    """Fills the disk of the run folder until the run ends in one sentence; then there is space again."""
    filler = run.parent / "filler"
    began = child.began
    with filler.open("wb", buffering=0) as file:
        size = 2**20
        while size:
            try:
                file.write(b"\0" * size)
            except OSError:
                size //= 2
    status = child.wait(END_S)
    filler.unlink()
    text = child.printed()
    if status == 0 and "budget reached" in text:
        return ""
    if status != 2 or "Traceback" in text or "cannot be written" not in text:
        return f"full disk: status {status} after {time.monotonic() - began:.0f} s: {text[-300:]!r}"
    return ""


def spoil_environment(child: Child, run: Path, rng: random.Random) -> str:
    """The environment gives rewards that are not a number: the run names it, saves the batch and ends."""
    file = Path(os.environ[FILE])
    file.touch()
    status = child.wait(END_S)
    file.unlink()
    text = child.printed()
    if status == 0 and "budget reached" in text:
        return ""
    if status != 2 or "Traceback" in text or not re.search(r"environment produced|values that are not finite", text):
        return f"NaN environment: status {status}: {text[-300:]!r}"
    return ""


FAULTS: dict[str, Disturb] = {
    "kill": kill,
    "kill while saving": kill,
    "SIGTERM": terminate,
    "damaged checkpoint": damage,
    "stopped rank": stop_rank,
    "hung simulator": hang_simulator,
    "lost rank": lose_rank,
    "full disk": fill_disk,
    "NaN environment": spoil_environment,
}
"""Name -> how the fault is made."""


def applies(fault: str, name: str, small_disk: bool) -> bool:
    """True if a fault can happen to the run `name`; a full disk needs a `small_disk`."""
    if fault in ("hung simulator", "NaN environment"):
        return name == "gym"
    if fault == "lost rank":
        return name.endswith("ranks")
    return small_disk if fault == "full disk" else True


def simulators(pid: int) -> list[int]:
    """Returns the processes of simulators below a process."""
    return [each for each in process_tree(pid) if "envs.workers.worker" in _command(each)]


def orphans(members: list[tuple[int, int | None]], seconds: float = 60.0) -> str:
    """Waits until ranks (pid, start ticks) have ended; returns a problem if one lives on."""
    deadline = time.monotonic() + seconds
    while left := [pid for pid, began in members if _lives(pid, began)]:
        if time.monotonic() > deadline:
            for pid in left:
                os.kill(pid, signal.SIGKILL)
            return f"ranks {left} live on"
        time.sleep(0.02)
    return ""


def _stalled(child: Child, members: list[tuple[int, int | None]], pid: int) -> str:
    status, text = child.wait(END_S), child.printed()
    if status not in STALL_ENDS or f"{pid}" not in text or "has made no progress" not in text:
        return f"stopped process {pid}: status {status}: {text[-400:]!r}"
    return orphans(members)


def _lives(pid: int, began: int | None) -> bool:
    """False for a process that has ended and waits for its parent, too."""
    return process_start_ticks(pid) == began and process_state(pid) not in ("", "Z")


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""
