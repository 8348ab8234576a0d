"""Damaged and hostile checkpoints: every change is found, and nothing outside of the folder is opened."""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path

import pytest
import torch

from powerband.core.run.checkpoints.checkpoint import load_checkpoint, resolve_resume
from powerband.core.run.checkpoints.checkpoint_writer import CheckpointWriter
from powerband.core.run.checkpoints.manifest import CheckpointError

STEPS = (10, 20)


def save(run_dir: Path, step: int) -> Path:
    writer = CheckpointWriter(run_dir, step)
    files: dict[str, dict] = {}
    for shard in ("shared", "rank0"):
        files |= writer.write(shard, {"x": torch.arange(8.0) + step, "step": step, "list": [1.5, "text"]})
    writer.write_manifest(files, {"world_size": 1, "env_steps": step, "grad_steps": step // 2})
    return writer.publish()


def new_run(folder: Path, identity: str = "a") -> Path:
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "run.json").write_text(json.dumps({"id": identity}))
    for step in STEPS:
        save(folder, step)
    return folder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return new_run(tmp_path / "run")


def loaded_steps(run: Path) -> int:
    """The step that a resume loads; its values must be those that were saved."""
    path, _ = resolve_resume(str(run))
    for shard in ("shared", "rank0"):
        tree, manifest = load_checkpoint(path, shard)
        assert (tree["step"], tree["list"]) == (manifest.step, [1.5, "text"])
        assert torch.equal(tree["x"], torch.arange(8.0) + manifest.step)
        assert manifest.counters == {"env_steps": manifest.step, "grad_steps": manifest.step // 2}
    return manifest.step


def test_flipped_bits_of_a_manifest_are_found(run: Path) -> None:
    path = run / "checkpoints" / "20" / "manifest.json"
    text = path.read_bytes()
    for position in range(0, 8 * len(text), 5):
        damaged = bytearray(text)
        damaged[position // 8] ^= 1 << position % 8
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError, match=r"20"):
            load_checkpoint(path.parent, "shared")
    path.write_bytes(text)
    assert loaded_steps(run) == 20


def mutate(run: Path, other: Path, draw: random.Random) -> str:
    """Changes something in the newest checkpoint, or exchanges it; returns the kind of the change."""
    newest = run / "checkpoints" / "20"
    file = draw.choice(sorted(newest.iterdir()))
    data = file.read_bytes()
    kind = draw.choice(["bit", "cut", "extend", "remove", "swap", "other run", "link", "folder link", "pipe", "value"])
    if kind == "bit":
        position = draw.randrange(8 * len(data))
        file.write_bytes(
            data[: position // 8] + bytes([data[position // 8] ^ 1 << position % 8]) + data[position // 8 + 1 :]
        )
    elif kind == "cut":
        file.write_bytes(data[: draw.randrange(len(data))])
    elif kind == "extend":
        file.write_bytes(data + bytes([draw.randrange(256)]))
    elif kind == "remove":
        file.unlink()
    elif kind == "swap":
        shutil.copy(run / "checkpoints" / "10" / file.name, file)
    elif kind == "other run":
        shutil.rmtree(newest)
        shutil.copytree(other / "checkpoints" / "20", newest)
    elif kind == "link":
        file.unlink()
        file.symlink_to(draw.choice(["/dev/zero", "/etc/hostname", other / "checkpoints" / "20" / file.name]))
    elif kind == "folder link":
        shutil.rmtree(newest)
        newest.symlink_to(other / "checkpoints" / "20")
    elif kind == "pipe":
        file.unlink()
        os.mkfifo(file)
    else:
        value = draw.choice([None, -1, 1e300, "x", [], {}, {"size": 1}, "../../etc/passwd", [[[]]] * 50])
        body = json.loads((newest / "manifest.json").read_text())
        body[draw.choice(sorted(body))] = value
        (newest / "manifest.json").write_text(json.dumps(body))
    return kind


@pytest.mark.parametrize("mutations", [300, pytest.param(10_000, marks=pytest.mark.slow)])
def test_whatever_is_changed_the_previous_checkpoint_is_used(run: Path, tmp_path: Path, mutations: int) -> None:
    other, saved = new_run(tmp_path / "other", "b"), tmp_path / "saved"
    shutil.copytree(run / "checkpoints" / "20", saved)
    draw, kinds = random.Random(0), set()
    for _ in range(mutations):
        kind = mutate(run, other, draw)
        kinds.add(kind)
        assert loaded_steps(run) == 10, kind
        newest = run / "checkpoints" / "20"
        newest.unlink() if newest.is_symlink() else shutil.rmtree(newest)
        shutil.copytree(saved, newest)
    assert loaded_steps(run) == 20 and len(kinds) == 10


@pytest.mark.parametrize("name", ["../shared.json", "/dev/zero", "a/b", ".hidden", "..", "", "x" * 300, "a\nb"])
def test_names_that_lead_elsewhere_are_refused(run: Path, name: str) -> None:
    path = run / "checkpoints" / "20" / "manifest.json"
    body = json.loads(path.read_text())
    body |= {"format": 1, "meta": {"world_size": 1}, "files": {name: {"size": 1, "sha256": "0"}}}
    path.write_text(json.dumps(body))
    with pytest.raises(CheckpointError, match="not a file with size and hash"):
        load_checkpoint(path.parent, "shared")


def test_a_checkpoint_of_the_former_format_is_loaded(run: Path) -> None:
    path = run / "checkpoints" / "20" / "manifest.json"
    body = json.loads(path.read_text())
    meta = {"world_size": body["world_size"], **body["counters"]}
    path.write_text(json.dumps({"format": 1, "step": 20, "meta": meta, "files": body["files"]}))
    assert loaded_steps(run) == 20


def test_a_huge_manifest_is_not_read(run: Path) -> None:
    path = run / "checkpoints" / "20" / "manifest.json"
    with path.open("r+b") as file:
        file.truncate(2**40)  # a file with a hole, which takes no space
    with pytest.raises(CheckpointError, match="more than 16 MiB"):
        load_checkpoint(path.parent, "shared")
    assert loaded_steps(run) == 10
