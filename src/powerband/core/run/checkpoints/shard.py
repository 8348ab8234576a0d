"""Shard: the part of the state that one rank saves, as two files without pickle, and back.

Tensors go to a safetensors file. The structure and all other values go to a JSON file.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

TENSOR, ARRAY, NUMBER = "__tensor__", "__array__", "__float__"
"""Keys of the objects that stand for a tensor, an array, and a number that is not finite."""

OS_ERROR = re.compile(r"\(os error (\d+)\)")
"""Number of the error of the operating system in a message of safetensors."""


def pack_shard(shard: str, tree: Any) -> dict[str, bytes]:
    """Returns the files of one shard, file name -> content. `tree` is as in `CheckpointWriter.write`."""
    from safetensors.torch import save

    structure, tensors = _packed(tree)
    return {f"{shard}.safetensors": save(tensors), f"{shard}.json": structure}


def save_shard(folder: Path, shard: str, tree: Any) -> list[Path]:
    """Writes the files of one shard into `folder`, and returns their paths. `tree` is as in `CheckpointWriter.write`.

    Tensors on the CPU are not copied, because a replay may take most of the memory.

    Raises:
        OSError: The folder cannot be written, or the disk is full.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    structure, tensors = _packed(tree)
    paths = [folder / f"{shard}.safetensors", folder / f"{shard}.json"]
    paths[1].write_bytes(structure)
    try:
        save_file(tensors, paths[0])
    except SafetensorError as error:
        number = OS_ERROR.search(str(error))
        raise OSError(int(number[1]), os.strerror(int(number[1]))) if number else OSError(str(error)) from error
    os.chmod(paths[0], paths[1].stat().st_mode)  # safetensors creates a file that nobody else may read
    return paths


def unpack_shard(structure: bytes, tensors: Mapping[str, Tensor]) -> Any:
    """Returns the tree of a shard.

    Args:
        structure: Content of its JSON file.
        tensors: Content of its safetensors file.

    Raises:
        ValueError, KeyError, TypeError, RecursionError: The structure is damaged.
    """
    return _unpack(json.loads(structure), tensors, "")


def _packed(tree: Any) -> tuple[bytes, dict[str, Tensor]]:
    """Returns the content of the JSON file of a shard, and its tensors by their paths in `tree`."""
    tensors: dict[str, Tensor] = {}
    structure = json.dumps(_pack(tree, tensors, ""))
    storages: set[int] = set()
    for path, tensor in tensors.items():
        storage = tensor.untyped_storage()
        if storage.nbytes() > tensor.nbytes or storage.data_ptr() in storages:
            tensors[path] = tensor.clone()  # safetensors refuses tensors that share memory, such as views
        elif tensor.nbytes:
            storages.add(storage.data_ptr())
    return structure.encode(), tensors


def _pack(value: Any, tensors: dict[str, Tensor], path: str) -> Any:
    """`value` as JSON values. Its tensors and arrays are added to `tensors` under paths that begin with `path`."""
    if isinstance(value, dict):
        assert all(isinstance(key, str) for key in value), f"{path}: keys of a saved dict must be strings"
        return {key: _pack(item, tensors, f"{path}/{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_pack(item, tensors, f"{path}/{index}") for index, item in enumerate(value)]
    if isinstance(value, Tensor):
        tensors[path] = value.detach().cpu().contiguous()
        return {TENSOR: path}
    if isinstance(value, np.ndarray):
        tensors[path] = torch.from_numpy(np.array(value, order="C"))
        return {ARRAY: path}
    if isinstance(value, float) and not math.isfinite(value):
        return {NUMBER: str(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(
        f"{path}: a checkpoint cannot store {type(value).__name__}. Use tensors, numbers, strings, lists or dicts."
    )


def _unpack(value: Any, tensors: Mapping[str, Tensor], path: str) -> Any:
    if isinstance(value, list):
        return [_unpack(item, tensors, path) for item in value]
    if not isinstance(value, dict):
        return value
    if TENSOR in value:
        return tensors[value[TENSOR]]
    if ARRAY in value:
        return tensors[value[ARRAY]].numpy()
    if NUMBER in value:
        return float(value[NUMBER])
    return {key: _unpack(item, tensors, path) for key, item in value.items()}
