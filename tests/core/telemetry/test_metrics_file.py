"""Reading of damaged metrics: bad lines are counted, good ones are kept, and a growing file is followed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from powerband.core.telemetry import metrics_file
from powerband.core.telemetry.metrics import JsonlSink
from powerband.core.telemetry.metrics_file import MetricsReader


def line(step: int, **figures) -> bytes:
    return json.dumps({"env_steps": step, "grad_steps": 0, "time_s": step / 10, **figures}).encode() + b"\n"


DAMAGED = {
    "cut": b'{"env_steps": 20, "grad_st\n',
    "garbage": b"\xff\xfe\x80garbage\n",
    "NUL bytes": b"\0" * 4096 + b"\n",
    "NaN": line(20, **{"losses/a": float("nan")}),
    "infinity by overflow": b'{"env_steps": 20, "grad_steps": 0, "time_s": 1e999}\n',
    "an integer too large for a float": line(20, **{"losses/a": 10**400}),
    "an integer of too many digits": b'{"env_steps": ' + b"9" * 5000 + b', "grad_steps": 0, "time_s": 1}\n',
    "a text where a number belongs": line(20, time_s="late"),
    "a list where a number belongs": line(20, **{"charts/SPS": [1]}),
    "a missing counter": b'{"env_steps": 20, "time_s": 2.0}\n',
    "a negative counter": line(-20),
    "no object": b"[1, 2]\n",
    "nested too deeply": b"[" * 100_000 + b"\n",
    "a huge line": b'{"a": "' + b"x" * (metrics_file.MAX_LINE_BYTES * 2) + b'"}\n',
}


@pytest.mark.parametrize("damage", DAMAGED.values(), ids=DAMAGED.keys())
def test_a_damaged_line_is_skipped_and_counted(damage: bytes, tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(line(10) + damage + line(30, **{"eval/return": None}))
    reader = MetricsReader(path)
    assert [each["env_steps"] for each in reader.read(ended=True)] == [10, 30]
    assert reader.damaged == 1 and reader.note == f"{path}: 1 damaged line skipped."


def test_a_growing_file_is_followed(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(line(10) + line(20)[:9])
    reader = MetricsReader(path)
    assert [each["env_steps"] for each in reader.read()] == [10] and not reader.damaged
    with path.open("ab") as file:
        file.write(line(20)[9:] + b"\n" + line(30))
    assert [each["env_steps"] for each in reader.read()] == [20, 30]
    assert not list(reader.read()) and reader.note == ""


def test_the_last_line_of_an_ended_run_needs_no_end(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(line(10) + line(20).rstrip())
    assert [each["env_steps"] for each in MetricsReader(path).read(ended=True)] == [10, 20]


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_only_a_regular_file_is_opened(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    if kind == "link":
        path.symlink_to("/etc/hostname")
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    with pytest.raises(OSError):
        list(MetricsReader(path).read())


def test_rewinding_keeps_undamaged_lines_bit_by_bit_and_says_how_many_were_not(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    kept = line(10, **{"losses/a": 0.1 + 0.2, "eval/b": None})
    path.write_bytes(kept + DAMAGED["garbage"] + DAMAGED["NUL bytes"] + line(30) + line(20)[:5])
    sink = JsonlSink(path)
    assert "3 damaged lines" in sink.rewind(10, 10)
    sink.write({"env_steps": 20, "grad_steps": 0, "time_s": 1.0})
    sink.close()
    assert path.read_bytes() == kept + b'{"env_steps": 20, "grad_steps": 0, "time_s": 1.0}\n'
    assert [each.name for each in tmp_path.iterdir()] == ["metrics.jsonl"]
