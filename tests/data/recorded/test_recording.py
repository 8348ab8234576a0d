"""Recording: finished episodes survive a kill, recordings can be continued, and packing changes no value."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from powerband.data.recorded.recording import Recording, read_recording
from powerband.data.recorded.shards import ShardError

FACTS = {"seed": 3, "level": "smooth"}


def episode(number: int) -> dict[str, torch.Tensor]:
    steps = 2 + number % 3
    return {"action": torch.arange(steps) + 10 * number, "depth": torch.full((steps, 2, 2), number, dtype=torch.uint8)}


def test_packed_and_unpacked_episodes_are_read_back(tmp_path: Path) -> None:
    recording = Recording(tmp_path / "demos", FACTS)
    for number in (4, 0, 7):
        recording.add(number, episode(number))
    assert recording.numbers == [0, 4, 7]
    loose, facts = read_recording(tmp_path / "demos")
    assert facts == FACTS and loose["episode"].tolist() == [0, 0, 4, 4, 4, 7, 7, 7]
    assert torch.equal(loose["action"], torch.cat([episode(number)["action"] for number in (0, 4, 7)]))
    recording.pack()
    packed, facts = read_recording(tmp_path / "demos")
    assert facts == FACTS and packed.keys() == loose.keys()
    assert all(torch.equal(packed[name], value) for name, value in loose.items())
    assert not (tmp_path / "demos" / "episodes").exists()
    with pytest.raises(ShardError, match="is a finished recording"):
        Recording(tmp_path / "demos", FACTS)


def test_a_recording_is_continued_and_never_mixed(tmp_path: Path) -> None:
    Recording(tmp_path, FACTS).add(1, episode(1))
    assert Recording(tmp_path, FACTS).numbers == [1]
    with pytest.raises(ShardError, match="recorded with level=smooth, but the new ones have level=abstract"):
        Recording(tmp_path, {**FACTS, "level": "abstract"})


def test_damaged_and_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ShardError, match="has no recording"):
        read_recording(tmp_path / "nowhere")
    recording = Recording(tmp_path, FACTS)
    with pytest.raises(ShardError, match="no finished episode"):
        read_recording(tmp_path)
    recording.add(2, episode(2))
    (tmp_path / "episodes" / "00000002.safetensors").write_bytes(b"cut")
    with pytest.raises(ShardError, match="00000002.safetensors cannot be read"):
        read_recording(tmp_path)


WRITER = """
import sys, torch
from pathlib import Path
from powerband.data.recorded.recording import Recording
recording = Recording(Path(sys.argv[1]), {})
for number in range(100_000):
    recording.add(number, {"obs": torch.full((200, 64, 64), number % 251, dtype=torch.uint8)})
    print(number, flush=True)
"""


@pytest.mark.parametrize("after", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_a_kill_loses_no_finished_episode(tmp_path: Path, after: int) -> None:
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    finished = -1
    while finished < after:
        finished = int(process.stdout.readline())
    time.sleep(0.003 * after)
    os.kill(process.pid, signal.SIGKILL)
    finished = max([finished, *map(int, process.stdout.read().split())])
    process.wait()
    rows, _ = read_recording(tmp_path)
    counts = torch.bincount(rows["episode"])
    assert len(counts) >= finished + 1 and bool((counts == 200).all())
    assert torch.equal(rows["obs"][:, 0, 0].long(), rows["episode"] % 251)
