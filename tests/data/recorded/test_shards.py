"""Shards: rows are read back, also without powerband; errors name damaged and missing files."""

from __future__ import annotations

import errno
import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from safetensors.torch import load_file

from powerband.data.recorded import shards
from powerband.data.recorded.shards import ShardError, read_manifest, read_shards, write_shards


def rows_from(rows: int, first: int = 0) -> dict[str, torch.Tensor]:
    row = torch.arange(first, first + rows)
    return {"obs": row.unsqueeze(1).float() * torch.ones(3), "task": row, "start": row % 4 == 0}


def test_rows_are_read_back_in_order_from_several_files(tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "ROWS_PER_SHARD", 4)
    folder = write_shards(tmp_path / "data", rows_from(10), {"task": "reach"})
    manifest = read_manifest(folder)
    assert manifest["rows"] == 10 and [shard["rows"] for shard in manifest["shards"]] == [4, 4, 2]
    assert manifest["facts"] == {"task": "reach"}
    assert manifest["fields"]["obs"] == {"dtype": "float32", "shape": [3]}
    found = read_shards(folder)
    assert all(torch.equal(found[name], tensor) for name, tensor in rows_from(10).items())
    assert list(read_shards(folder, ["task"])) == ["task"]
    plain = load_file(folder / manifest["shards"][1]["file"])
    assert torch.equal(plain["task"], torch.arange(4, 8)), "safetensors alone can read a file"


def test_the_rows_of_two_ranks_are_in_the_order_of_ranks(tmp_path):
    barrier, values = threading.Barrier(2), [None, None]

    def gather(rank):
        def all_of(mine):
            values[rank] = mine
            barrier.wait(5)
            found = list(values)
            barrier.wait(5)
            return found

        return all_of

    ranks = [
        threading.Thread(target=write_shards, args=(tmp_path / "data", rows_from(3, 3 * rank), {}, gather(rank), rank))
        for rank in range(2)
    ]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(10)
    assert torch.equal(read_shards(tmp_path / "data")["task"], torch.arange(6))


def test_new_data_replace_all_old_data(tmp_path):
    write_shards(tmp_path / "data", rows_from(10), {"turn": 1})
    write_shards(tmp_path / "data", rows_from(2), {"turn": 2})
    assert read_manifest(tmp_path / "data")["facts"] == {"turn": 2}
    assert len(list((tmp_path / "data").glob("*.safetensors"))) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_old_data_are_deleted_after_the_new_ones_are_in_place(tmp_path, monkeypatch):
    folder, old = write_shards(tmp_path / "data", rows_from(10), {"turn": 1}), tmp_path / ".data.old"
    replace, rows_in_old_folder = os.replace, []

    def observed(source, target):
        if target == folder:
            rows_in_old_folder.append(read_shards(old)["task"].numel())
        replace(source, target)

    monkeypatch.setattr(shards.os, "replace", observed)
    write_shards(folder, rows_from(2), {"turn": 2})
    assert rows_in_old_folder == [10], "a kill at this point loses neither the old data nor the new ones"
    assert read_manifest(folder)["facts"] == {"turn": 2} and not old.exists()


def test_damaged_files_are_named(tmp_path):
    folder = write_shards(tmp_path / "data", rows_from(5), {})
    with pytest.raises(ShardError, match="no field reward; it has obs, task, start"):
        read_shards(folder, ["reward"])
    file = folder / read_manifest(folder)["shards"][0]["file"]
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(bytes(data))
    with pytest.raises(ShardError, match="has changed since it was written"):
        read_shards(folder)
    file.unlink()
    with pytest.raises(ShardError, match=file.name):
        read_shards(folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**manifest, "format": 7}))
    with pytest.raises(ShardError, match="format 7, but this version reads 1"):
        read_shards(folder)
    with pytest.raises(ShardError, match="Remove .*, then repeat the command that wrote it"):
        read_shards(tmp_path / "nowhere")


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ShardError, match="cannot be written"):
        write_shards(tmp_path / "file" / "data", rows_from(2), {})


def test_an_error_on_one_rank_ends_all_ranks(tmp_path):
    """Two threads are two ranks, which wait for each other in `gather`. The disk of the second one is full."""
    barrier, answers = threading.Barrier(2, timeout=20), [None, None]

    def write(rank: int) -> str:
        def gather(answer: object) -> list[object]:
            answers[rank] = answer
            barrier.wait()
            both = list(answers)
            barrier.wait()
            return both

        class Full(dict):
            def items(self):
                raise OSError(errno.ENOSPC, "No space left on device")

        fields = Full(rows_from(2)) if rank else rows_from(2)
        try:
            return str(write_shards(tmp_path / "data", fields, {}, gather, rank))
        except ShardError as error:
            return str(error)

    with ThreadPoolExecutor(2) as pool:
        messages = list(pool.map(write, range(2)))
    assert messages[0] == messages[1] and "No space left on device" in messages[0] and not (tmp_path / "data").exists()
