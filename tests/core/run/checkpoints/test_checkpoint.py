from __future__ import annotations

import itertools
import json
import math
import os
import shutil
import subprocess
import sys
import textwrap
from functools import partial

import numpy as np
import pytest
import torch
from safetensors import SafetensorError

from powerband.core.run.checkpoints import checkpoint_writer
from powerband.core.run.checkpoints.checkpoint import CheckpointError, load_checkpoint, resolve_resume
from powerband.core.run.checkpoints.checkpoint_marks import BEST, Mark, read_mark, write_mark
from powerband.core.run.checkpoints.checkpoint_writer import CheckpointWriter


def save(run_dir, step: int, tree, shards=("shared",), keep: int = 2):
    writer = CheckpointWriter(run_dir, step)
    files = {}
    for shard in shards:
        files |= writer.write(shard, tree)
    writer.write_manifest(files, {"world_size": 1})
    return writer.publish(keep)


@pytest.fixture
def run_dir(tmp_path):
    for name in ("run.json", "config.json"):
        (tmp_path / name).write_text("{}")
    return tmp_path


def test_a_saved_tree_is_restored_unchanged(run_dir):
    flat = torch.arange(12.0)
    tree = {
        "weights": {"view": flat[:4].view(2, 2), "other view": flat[4:], "t": flat.view(3, 4).t()},
        "bf16": torch.randn(3).bfloat16(),
        "flags": torch.tensor([True, False]),
        "counter": torch.tensor(2**62),
        "empty": torch.zeros(0, 3),
        "array": np.array([[1.5, 2.5]]),
        "plain": [1, 0.1, "text", None, True, -math.inf],
    }
    loaded, manifest = load_checkpoint(save(run_dir, 3, tree), "shared")
    assert (manifest.step, manifest.world_size) == (3, 1)
    for key in ("view", "other view", "t"):
        assert torch.equal(loaded["weights"][key], tree["weights"][key])
    for key in ("bf16", "flags", "counter", "empty"):
        assert loaded[key].dtype == tree[key].dtype and torch.equal(loaded[key], tree[key])
    assert np.array_equal(loaded["array"], tree["array"])
    assert loaded["plain"] == tree["plain"]


def test_the_newest_checkpoints_stay_and_last_names_the_newest(run_dir):
    for step in (1, 2, 3):
        save(run_dir, step, {"x": step}, keep=2)
    folder = run_dir / "checkpoints"
    assert sorted(path.name for path in folder.iterdir()) == ["2", "3", "last"]
    assert (folder / "last").read_text().strip() == "3"


@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_damage_is_reported_and_the_previous_checkpoint_is_used(run_dir, damage):
    save(run_dir, 1, {"x": torch.zeros(100)})
    newest = save(run_dir, 2, {"x": torch.zeros(100)})
    shard = newest / "shared.safetensors"
    data = bytearray(shard.read_bytes())
    if damage == "flip":
        data[-7] ^= 1
        shard.write_bytes(data)
    elif damage == "cut":
        shard.write_bytes(data[:-7])
    else:
        shard.unlink()
    with pytest.raises(CheckpointError, match="shared.safetensors"):
        load_checkpoint(newest, "shared")
    path, notices = resolve_resume(str(run_dir))
    assert path.name == "1"
    assert len(notices) == 1 and "shared.safetensors" in notices[0]


def test_resume_accepts_a_run_a_checkpoint_or_a_file_in_either(run_dir):
    for step in (1, 2):
        save(run_dir, step, {"x": step})
    folder = run_dir / "checkpoints"
    for target, step in (
        (run_dir, "2"),
        (run_dir / "run.json", "2"),
        (folder / "1", "1"),
        (folder / "1/manifest.json", "1"),
    ):
        assert resolve_resume(str(target))[0].name == step
    with pytest.raises(ValueError, match="does not exist"):
        resolve_resume(str(run_dir / "nothing"))


def test_a_run_without_checkpoints_is_an_error(run_dir):
    with pytest.raises(CheckpointError, match="no checkpoint"):
        resolve_resume(str(run_dir))


def test_a_full_disk_keeps_the_previous_checkpoint(run_dir, monkeypatch):
    save(run_dir, 1, {"x": torch.ones(10)})

    def full(tensors, path):
        path.write_bytes(b"half")
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("safetensors.torch.save_file", full)
    with pytest.raises(CheckpointError, match="No space left"):
        save(run_dir, 2, {"x": torch.ones(10)})
    monkeypatch.undo()
    path, notices = resolve_resume(str(run_dir))
    assert path.name == "1" and not notices
    save(run_dir, 3, {"x": torch.ones(10)})
    assert not list((run_dir / "checkpoints").glob(".saving-*"))


def test_a_save_takes_no_copy_of_large_tensors_and_its_files_have_the_usual_mode(tmp_path):
    """A replay may take most of the memory, and Linux kills a process that needs more."""
    script = f"""
        import torch
        from pathlib import Path
        from powerband.core.run.checkpoints.checkpoint_writer import CheckpointWriter

        def peak():
            return int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]) * 1024

        writer = CheckpointWriter(Path({str(tmp_path)!r}), 1)
        writer.write("small", {{"x": torch.ones(4)}})  # imports safetensors
        replay, before = torch.ones(2**26), peak()
        writer.write("rank0", {{"replay": replay, "part": replay[:8]}})
        assert peak() - before < replay.nbytes / 4, (before, peak())
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True)
    files = {path.name: path.stat() for path in (tmp_path / "checkpoints" / ".saving-1").iterdir()}
    assert files["rank0.safetensors"].st_size > 2**28
    assert {facts.st_mode for facts in files.values()} == {files["rank0.json"].st_mode}


def test_a_part_that_copies_its_state_is_restored_without_a_second_copy(run_dir):
    """A replay may take most of the memory, and other ranks may have saved it in several shards."""
    script = f"""
        import sys, torch
        from pathlib import Path
        from types import SimpleNamespace
        from powerband.core.run.checkpoints.checkpoint_writer import CheckpointWriter
        from powerband.core.run.state_registry import StateRegistry

        def peak():
            return int(next(line for line in open("/proc/self/status") if line.startswith("RssAnon")).split()[1]) * 1024

        class Part:
            copies_state = sys.argv[1] == "copies"

            def load_state_dict(self, state):
                self.anonymous, self.sum = peak(), float(state["rows"].sum())

        saved_ranks, size, part = int(sys.argv[2]), 2**26, Part()
        writer, files = CheckpointWriter(Path({str(run_dir)!r}), 1), {{}}
        files |= writer.write("shared", {{"run": {{}}}})
        for rank in range(saved_ranks):
            files |= writer.write(f"rank{{rank}}", {{"part": {{"rows": torch.ones(size)}}}})
        writer.write_manifest(files, {{"world_size": saved_ranks}})
        registry, before = StateRegistry(SimpleNamespace(rank=0, world_size=1)), peak()
        registry.add("part", part, False, lambda states: [part.load_state_dict(state) for state in states])
        assert registry.load(writer.publish(2))[1] == saved_ranks
        assert part.sum == size
        copies = (part.anonymous - before) / (size * 4)
        expected = 0 if part.copies_state else saved_ranks
        assert abs(copies - expected) < 0.25, copies
    """
    for words in (["copies", "1"], ["copies", "2"], ["keeps", "1"]):
        subprocess.run([sys.executable, "-c", textwrap.dedent(script), *words], check=True)


def test_a_resume_from_an_older_step_removes_the_newer_checkpoints(run_dir):
    for step in (10, 20):
        save(run_dir, step, {"x": step})
    save(run_dir, 15, {"x": 15})
    assert resolve_resume(str(run_dir))[0].name == "15"


def test_a_kill_during_a_save_neither_loses_it_nor_brings_an_abandoned_continuation_back(run_dir, monkeypatch):
    """A run that continued checkpoint 100 saves 150, and is killed before each change of the disk in turn."""
    changes = [(os, "replace"), (shutil, "rmtree"), (checkpoint_writer, "_write_synced")]
    resumed = []
    for number in itertools.count():
        for step in (100, 200, 300):
            save(run_dir, step, {"x": step}, keep=5)
        writer = CheckpointWriter(run_dir, 150)
        writer.write_manifest(writer.write("shared", {"x": 150}), {"world_size": 1})
        remaining = iter(range(number, -1, -1))

        def change(original, *arguments, remaining=remaining, **settings):
            if next(remaining) == 0:
                raise KeyboardInterrupt
            return original(*arguments, **settings)

        with monkeypatch.context() as patch:
            for module, name in changes:
                patch.setattr(module, name, partial(change, getattr(module, name)))
            try:
                writer.publish(5)
            except KeyboardInterrupt:
                resumed.append(resolve_resume(str(run_dir))[0].name)
            else:
                break
        shutil.rmtree(run_dir / "checkpoints")
    assert list(dict.fromkeys(resumed)) == ["300", "200", "100", "150"], resumed
    assert resumed == sorted(resumed, key=["300", "200", "100", "150"].index)
    assert resolve_resume(str(run_dir))[0].name == "150"


def test_a_checkpoint_that_replaces_one_of_the_same_step_is_not_the_best(run_dir):
    save(run_dir, 100, {"x": 1})
    save(run_dir, 200, {"x": 2})
    write_mark(run_dir, BEST, Mark(200, {"return": 95.0}))
    save(run_dir, 200, {"x": 3})
    assert read_mark(run_dir, BEST) is None


def test_the_policy_loads_with_safetensors_alone(run_dir):
    from safetensors.torch import load_file

    checkpoint_writer.export_policy(run_dir, {"algo": "ppo"}, {"w": torch.ones(2, 2)})
    assert torch.equal(load_file(run_dir / "policy" / "model.safetensors")["w"], torch.ones(2, 2))
    assert json.loads((run_dir / "policy" / "config.json").read_text()) == {"algo": "ppo"}


@pytest.mark.parametrize("damage", ["missing", "short"])
def test_a_manifest_needs_all_shards(run_dir, damage):
    """As when another machine has written its shard to a disk of its own."""
    save(run_dir, 1, {"x": 1})
    writer = CheckpointWriter(run_dir, 2)
    files = writer.write("rank0", {"x": torch.ones(4)})
    shard = writer.hidden / next(iter(files))
    if damage == "missing":
        shard.unlink()
    else:
        shard.write_bytes(b"")
    with pytest.raises(CheckpointError, match=f"lacks {shard.name}"):
        writer.write_manifest(files, {"world_size": 1})
    assert resolve_resume(str(run_dir))[0].name == "1"
