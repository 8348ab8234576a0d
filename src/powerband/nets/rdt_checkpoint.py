"""Published RDT checkpoints: a folder with config.json and the weights, read into a policy by name, and written again.

Weights are ``model.safetensors``, or ``pytorch_model.bin`` read as weights only, or shards of either with their index.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from powerband.core.flags import ConfigError
from powerband.nets.rdt import SIZES, RDTShape, RDTSize
from powerband.nets.rdt_policy import RDTPolicy

PARTS = ("model", "lang_adaptor", "img_adaptor", "state_adaptor")
"""Of a policy; what it has beside them is not in a published checkpoint."""
SAFE, PICKLED, INDEX = "model.safetensors", "pytorch_model.bin", ".index.json"
NAMED = 6
"""Weights that a message names at most."""


def load_published(policy: RDTPolicy, folder: Path) -> None:
    """Reads a checkpoint into the RDT and the adaptors of `policy`; its encoder and statistics stay as they are.

    Raises:
        ConfigError: No checkpoint, a damaged one, or one of another size or other encoders; with what differs.
    """
    weights, own = read_weights(folder), published_state(policy)
    missing, unknown = sorted(own.keys() - weights.keys()), sorted(weights.keys() - own.keys())
    wrong = [name for name in own if name in weights and weights[name].shape != own[name].shape]
    if missing or unknown or wrong:
        shapes = (f"{name} {tuple(weights[name].shape)} there, {tuple(own[name].shape)} here" for name in wrong)
        said = [
            f"{len(names)} {what} ({_some(given)})"
            for what, names, given in (
                ("are missing", missing, missing),
                ("are not known", unknown, unknown),
                ("have another shape", wrong, shapes),
            )
            if names
        ]
        raise ConfigError(f"{folder} does not fit this policy: of its weights, {'; '.join(said)}. {_fix(weights)}")
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(weights[name])


def export_published(policy: RDTPolicy, folder: Path) -> None:
    """Writes the RDT and the adaptors of `policy` as a published checkpoint: config.json and model.safetensors."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    state = {name: value.detach().cpu().contiguous() for name, value in published_state(policy).items()}
    save_file(state, folder / SAFE)
    (folder / "config.json").write_text(json.dumps(settings_of(policy), indent=2) + "\n")


def published_state(policy: RDTPolicy) -> dict[str, Tensor]:
    """The weights of `policy` that a published checkpoint has, under its names."""
    return {name: value for name, value in policy.state_dict().items() if name.split(".")[0] in PARTS}


def settings_of(policy: RDTPolicy) -> dict[str, Any]:
    """What config.json of a published checkpoint says."""
    shape, model = policy.shape, policy.model
    size = size_of(published_state(policy))
    return {
        "action_dim": shape.vector,
        "state_token_dim": shape.vector,
        "pred_horizon": shape.horizon,
        "lang_token_dim": shape.language_width,
        "img_token_dim": shape.picture_width,
        "max_lang_cond_len": shape.language_tokens,
        "img_cond_len": model.img_cond_pos_embed.shape[1],
        "lang_pos_embed_config": [["lang", -shape.language_tokens]],
        "img_pos_embed_config": [["image", [shape.frames, shape.cameras, -shape.patches]]],
        "lang_adaptor": "mlp2x_gelu",
        "img_adaptor": "mlp2x_gelu",
        "state_adaptor": "mlp3x_gelu",
        "rdt": {"hidden_size": size.width, "depth": size.depth, "num_heads": size.heads},
        "noise_scheduler": {
            "type": "ddpm",
            "num_train_timesteps": 1000,
            "num_inference_timesteps": 5,
            "beta_schedule": "squaredcos_cap_v2",
            "prediction_type": "sample",
            "clip_sample": False,
        },
    }


def published_shape(folder: Path) -> tuple[RDTSize, RDTShape]:
    """Size and shape of a checkpoint, for a policy that it fits: from its weights, and from config.json what they do
    not say (frames and cameras).

    Raises:
        ConfigError: No checkpoint, or one that is not of this kind.
    """
    weights = read_weights(folder)
    try:
        size = size_of(weights)
        settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        [[_, (frames, cameras, patches)]] = settings["img_pos_embed_config"]
        shape = RDTShape(
            horizon=weights["model.x_pos_embed"].shape[1] - 3,
            vector=weights["model.final_layer.ffn_final.fc2.weight"].shape[0],
            language_tokens=weights["model.lang_cond_pos_embed"].shape[1],
            frames=frames,
            cameras=cameras,
            patches=abs(patches),
            language_width=weights["lang_adaptor.0.weight"].shape[1],
            picture_width=weights["img_adaptor.0.weight"].shape[1],
        )
    except (OSError, KeyError, TypeError, ValueError, IndexError) as error:
        raise ConfigError(
            f"{folder} is no RDT checkpoint ({type(error).__name__}: {error}). It needs config.json with "
            f"img_pos_embed_config, and the weights that such a checkpoint has."
        ) from error
    return size, shape


def size_of(weights: dict[str, Tensor]) -> RDTSize:
    """Width, depth and heads that weights have; KeyError where they are not of an RDT."""
    width = weights["model.x_pos_embed"].shape[-1]
    numbers = [int(name.split(".")[2]) for name in weights if name.startswith("model.blocks.")]
    heads = width // weights["model.blocks.0.attn.q_norm.weight"].shape[0]
    return RDTSize(width, 1 + max(numbers), heads)


def read_weights(folder: Path) -> dict[str, Tensor]:
    """Name -> tensor on the CPU, as they lie in `folder`.

    Raises:
        ConfigError: No such folder, no weights in it, or damaged ones.
    """
    for name, read in ((SAFE, _read_safe), (PICKLED, _read_pickled)):
        if (folder / name).is_file():
            return read(folder / name)
        index = folder / f"{name}{INDEX}"
        if index.is_file():
            return {key: value for part in _shards(index) for key, value in read(folder / part).items()}
    raise ConfigError(
        f"{folder} holds no checkpoint: neither {SAFE} nor {PICKLED} (or shards of one with their index) is there. "
        f"Put the files of robotics-diffusion-transformer/rdt-1b or rdt-170m there; without it training starts anew."
    )


def _read_safe(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise _damaged(path, error) from error


def _read_pickled(path: Path) -> dict[str, Tensor]:
    """Tensors alone: anything else in the file is refused unread."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # what a damaged archive raises is not said anywhere
        raise _damaged(path, error) from error
    state = state.get("module", state) if isinstance(state, dict) else state  # DeepSpeed puts weights there
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise ConfigError(f"{path} holds something else than named weights. Name the folder of a published checkpoint.")
    return state


def _shards(index: Path) -> list[str]:
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _damaged(index, error) from error
    if any(not isinstance(name, str) or Path(name).name != name for name in names):
        raise ConfigError(f"{index} names files outside its folder. Use the index that the checkpoint came with.")
    return names


def _damaged(path: Path, error: Exception) -> ConfigError:
    said = " ".join(str(error).split())[:200]
    return ConfigError(f"{path} cannot be read ({said}). Copy this file again.")


def _some(names: Iterable[str]) -> str:
    known = list(names)
    return ", ".join(known[:NAMED]) + (f" and {len(known) - NAMED} more" if len(known) > NAMED else "")


def _fix(weights: dict[str, Tensor]) -> str:
    """What to write so that the weights fit."""
    try:
        size = size_of(weights)
    except (KeyError, ValueError, IndexError):
        return "It is no RDT: name the folder of a published RDT checkpoint."
    known = [name for name, other in SIZES.items() if other == size]
    words = f"size={known[0]}" if known else ", ".join(f"{name} {value}" for name, value in asdict(size).items())
    language, pictures = (
        weights[f"{name}.0.weight"].shape[1] if f"{name}.0.weight" in weights else "no"
        for name in ("lang_adaptor", "img_adaptor")
    )
    return (
        f"What fits it is {words}, with a language encoder of {language} and a vision encoder of {pictures} "
        f"numbers a token."
    )
