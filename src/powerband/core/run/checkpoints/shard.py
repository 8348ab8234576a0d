"""Shard: the part of the state that one rank saves, as the bytes of two files without pickle, and back.

Tensors go to a safetensors file. The structure and all other values go to a JSON file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

TENSOR, ARRAY, NUMBER = "__tensor__", "__array__", "__float__"
"""Keys of the objects that stand for a tensor, an array, and a number that is not finite."""


def pack_shard(shard: str, tree: Any) -> dict[str, bytes]:
    """Returns the files of one shard, file name -> content. `tree` is as in `CheckpointWriter.write`."""
    from safetensors.torch import save

    tensors: dict[str, Tensor] = {}
    structure = json.dumps(_pack(tree, tensors, ""))
    return {f"{shard}.safetensors": save(tensors), f"{shard}.json": structure.encode()}


def unpack_shard(structure: bytes, tensors: Mapping[str, Tensor]) -> Any:
    """Returns the tree of a shard.

    Args:
        structure: Content of its JSON file.
        tensors: Content of its safetensors file.

    Raises:
        ValueError, KeyError, TypeError, RecursionError: The structure is damaged.
    """
    return _unpack(json.loads(structure), tensors, "")


def _pack(value: Any, tensors: dict[str, Tensor], path: str) -> Any:
    """`value` as JSON values. Its tensors and arrays are added to `tensors` under paths that begin with `path`."""
    if isinstance(value, dict):
        assert all(isinstance(key, str) for key in value), f"{path}: keys of a saved dict must be strings"
        return {key: _pack(item, tensors, f"{path}/{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_pack(item, tensors, f"{path}/{index}") for index, item in enumerate(value)]
    if isinstance(value, Tensor):
        # Copied, because safetensors refuses tensors that share memory, such as views of a flat tensor.
        tensors[path] = value.detach().to("cpu", copy=True).contiguous()
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
