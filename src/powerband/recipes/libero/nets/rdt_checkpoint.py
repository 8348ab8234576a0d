"""Reads published RDT checkpoints, which are folders with config.json and weights, into a policy, and writes them.

Weights are ``model.safetensors``, or ``pytorch_model.bin`` (loaded with weights_only), or shards of either with their
index.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from powerband.core.errors import ConfigError
from powerband.recipes.libero.nets.rdt import SIZES, RDTShape, RDTSize
from powerband.recipes.libero.nets.rdt_policy import RDTPolicy
from powerband.recipes.libero.settings import RDTConfig

PARTS = ("model", "lang_adaptor", "img_adaptor", "state_adaptor")
"""Modules of a policy that a published checkpoint contains."""
SAFE, PICKLED, INDEX = "model.safetensors", "pytorch_model.bin", ".index.json"
MAX_NAMES = 6
"""Largest number of weights that a message names."""


def load_published(policy: RDTPolicy, folder: Path) -> None:
    """Reads a checkpoint into `policy`: the weights of the RDT and of the adaptors, which map inputs to tokens.

    The image encoder and the statistics of `policy` do not change.

    Raises:
        ConfigError: The checkpoint is missing or damaged, or has another size or other encoders.
    """
    weights, state = read_weights(folder), published_state(policy)
    missing, unknown = sorted(state.keys() - weights.keys()), sorted(weights.keys() - state.keys())
    mismatched = [name for name in state if name in weights and weights[name].shape != state[name].shape]
    if missing or unknown or mismatched:
        shapes = [f"{name} {tuple(weights[name].shape)}, not {tuple(state[name].shape)}" for name in mismatched]
        problems = [
            f"{len(names)} {problem} ({_shortened(names)})"
            for problem, names in (("missing", missing), ("unknown", unknown), ("of another shape", shapes))
            if names
        ]
        raise ConfigError(f"{folder} does not fit this policy. Weights: {'; '.join(problems)}. {_fix(weights)}")
    with torch.no_grad():
        for name, tensor in state.items():
            tensor.copy_(weights[name])


def export_published(policy: RDTPolicy, folder: Path) -> None:
    """Writes a checkpoint in the format of the published ones, config.json and model.safetensors, to `folder`.

    The checkpoint contains the RDT and the adaptors of `policy`, the layers that map inputs to tokens.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in published_files(policy).items():
        (folder / name).write_bytes(content)


def published_files(policy: RDTPolicy, config: RDTConfig | None = None) -> dict[str, bytes]:
    """Returns the files of a published checkpoint of `policy`, trained with `config`: name -> content."""
    from safetensors.torch import save

    state = {name: value.detach().cpu().contiguous() for name, value in published_state(policy).items()}
    settings = json.dumps(published_settings(policy, config or RDTConfig()), indent=2) + "\n"
    return {SAFE: save(state), "config.json": settings.encode()}


def published_state(policy: RDTPolicy) -> dict[str, Tensor]:
    """Returns the weights of `policy` that a published checkpoint contains, by their published names."""
    return {name: value for name, value in policy.state_dict().items() if name.split(".")[0] in PARTS}


def published_settings(policy: RDTPolicy, config: RDTConfig) -> dict[str, Any]:
    """Returns the content of config.json that a published checkpoint of `policy`, trained with `config`, has."""
    scheduler = {
        "type": "ddpm",
        "num_train_timesteps": config.noise_steps,
        "num_inference_timesteps": config.sample_steps,
        "beta_schedule": "squaredcos_cap_v2",
        "prediction_type": "sample",
        "clip_sample": False,
    }
    shape, model = policy.shape, policy.model
    size = size_of(published_state(policy))
    return {
        "action_dim": shape.vector,
        "state_token_dim": shape.vector,
        "pred_horizon": shape.horizon,
        "lang_token_dim": shape.language_width,
        "img_token_dim": shape.patch_width,
        "max_lang_cond_len": shape.language_tokens,
        "img_cond_len": model.img_cond_pos_embed.shape[1],
        "lang_pos_embed_config": [["lang", -shape.language_tokens]],
        "img_pos_embed_config": [["image", [shape.frames, shape.cameras, -shape.patches]]],
        "lang_adaptor": "mlp2x_gelu",
        "img_adaptor": "mlp2x_gelu",
        "state_adaptor": "mlp3x_gelu",
        "rdt": {"hidden_size": size.width, "depth": size.depth, "num_heads": size.heads},
        **({"noise_scheduler": scheduler} if config.objective == "diffusion" else {}),
    }


def published_shape(folder: Path) -> tuple[RDTSize, RDTShape]:
    """Returns the size of the transformer and the shapes of inputs and outputs of the checkpoint in `folder`.

    The weights determine them, except the numbers of frames, cameras and patches, which are in config.json.

    Raises:
        ConfigError: The folder has no checkpoint, or a checkpoint of another kind.
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
            patch_width=weights["img_adaptor.0.weight"].shape[1],
        )
    except (OSError, KeyError, TypeError, ValueError, IndexError) as error:
        raise ConfigError(
            f"{folder} is not an RDT checkpoint ({type(error).__name__}: {error}). The folder needs config.json "
            f"with img_pos_embed_config, and the weights of an RDT. Name another folder with pretrained=."
        ) from error
    return size, shape


def size_of(weights: dict[str, Tensor]) -> RDTSize:
    """Derives width, depth and heads of an RDT from the names and shapes of its weights.

    Raises:
        KeyError: The weights are not those of an RDT.
    """
    width = weights["model.x_pos_embed"].shape[-1]
    blocks = [int(name.split(".")[2]) for name in weights if name.startswith("model.blocks.")]
    heads = width // weights["model.blocks.0.attn.q_norm.weight"].shape[0]
    return RDTSize(width, 1 + max(blocks), heads)


def read_weights(folder: Path) -> dict[str, Tensor]:
    """Reads the weights in a folder: name -> tensor on the CPU.

    Raises:
        ConfigError: The folder or its weights are missing, or damaged.
    """
    for name, read in ((SAFE, _read_safe), (PICKLED, _read_pickled)):
        if (folder / name).is_file():
            return read(folder / name)
        index = folder / f"{name}{INDEX}"
        if index.is_file():
            return {key: value for part in _shards(index) for key, value in read(folder / part).items()}
    raise ConfigError(
        f"{folder} has no checkpoint: neither {SAFE} nor {PICKLED}, nor shards of one with their index. Download "
        f"robotics-diffusion-transformer/rdt-1b or rdt-170m into it, or leave out pretrained= to train from scratch."
    )


def _read_safe(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise _damaged(path, error) from error


def _read_pickled(path: Path) -> dict[str, Tensor]:
    """Reads a dict of tensors; torch refuses a file that contains other objects, without loading them."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # the exceptions for a damaged archive are not documented
        raise _damaged(path, error) from error
    state = state.get("module", state) if isinstance(state, dict) else state  # where DeepSpeed stores the weights
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise ConfigError(f"{path} does not contain a dict of weights. Name the folder of a published checkpoint.")
    return state


def _shards(index: Path) -> list[str]:
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _damaged(index, error) from error
    if any(not isinstance(name, str) or Path(name).name != name for name in names):
        raise ConfigError(
            f"{index} names files outside its folder. Download the index and the weights of one checkpoint."
        )
    return names


def _damaged(path: Path, error: Exception) -> ConfigError:
    message = " ".join(str(error).split())[:200]
    return ConfigError(f"{path} cannot be read ({message}). Download the file again.")


def _shortened(names: list[str]) -> str:
    """Joins the first `MAX_NAMES` names, and adds the number of those left out."""
    return ", ".join(names[:MAX_NAMES]) + (f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else "")


def _fix(weights: dict[str, Tensor]) -> str:
    """Returns the end of an error message: the size of the RDT and of the encoders that the weights fit."""
    try:
        size = size_of(weights)
    except (KeyError, ValueError, IndexError):
        return "The weights are not those of an RDT. Name the folder of a published RDT checkpoint."
    names = [name for name, other in SIZES.items() if other == size]
    setting = f"size={names[0]}" if names else ", ".join(f"{name} {value}" for name, value in asdict(size).items())
    language, image = (
        weights[f"{name}.0.weight"].shape[1] if f"{name}.0.weight" in weights else "unknown"
        for name in ("lang_adaptor", "img_adaptor")
    )
    encoders = f"a text encoder of {language} and a vision encoder of {image} features per token"
    return f"The checkpoint fits {setting}, {encoders}."
