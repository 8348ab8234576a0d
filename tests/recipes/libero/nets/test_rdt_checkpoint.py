"""Published RDT checkpoints: the policy has their names and shapes, reads and writes them, and lists every mismatch."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from powerband.core.errors import ConfigError
from powerband.recipes.libero.nets import rdt_checkpoint
from powerband.recipes.libero.nets.rdt import SIZES, RDTShape, RDTSize
from powerband.recipes.libero.nets.rdt_checkpoint import (
    export_published,
    load_published,
    published_files,
    published_shape,
    published_state,
)
from powerband.recipes.libero.nets.rdt_policy import RDTPolicy
from powerband.recipes.libero.nets.small_vision import PatchEncoder
from powerband.recipes.libero.settings import RDTConfig

W, HEADS, DEPTH = 16, 2, 2
SIZE = RDTSize(W, DEPTH, HEADS)
SHAPE = RDTShape(
    horizon=4, vector=12, language_tokens=6, frames=2, cameras=3, patches=4, language_width=10, patch_width=64
)
LAYERS = {
    "model.t_embedder.mlp.0": (W, 256),
    "model.t_embedder.mlp.2": (W, W),
    "model.freq_embedder.mlp.0": (W, 256),
    "model.freq_embedder.mlp.2": (W, W),
    "model.final_layer.ffn_final.fc1": (W, W),
    "model.final_layer.ffn_final.fc2": (12, W),
    "lang_adaptor.0": (W, 10),
    "lang_adaptor.2": (W, W),
    "img_adaptor.0": (W, 64),
    "img_adaptor.2": (W, W),
    "state_adaptor.0": (W, 24),
    "state_adaptor.2": (W, W),
    "state_adaptor.4": (W, W),
}
"""Linear layers: each has a weight of this shape and a bias. Source of names and shapes: models/rdt_runner.py,
models/rdt/model.py and models/rdt/blocks.py of thu-ml/RoboticsDiffusionTransformer, with Attention, Mlp and RmsNorm of
timm 1.0.3."""
BLOCK_LAYERS = {
    "attn.qkv": (3 * W, W),
    "attn.proj": (W, W),
    "cross_attn.q": (W, W),
    "cross_attn.kv": (2 * W, W),
    "cross_attn.proj": (W, W),
    "ffn.fc1": (W, W),
    "ffn.fc2": (W, W),
}
BLOCK_NORMS = {
    **{f"norm{number}": W for number in (1, 2, 3)},
    **{f"{kind}.{projection}_norm": W // HEADS for kind in ("attn", "cross_attn") for projection in "qk"},
}
TABLES = {
    "model.x_pos_embed": (1, 4 + 3, W),
    "model.lang_cond_pos_embed": (1, 6, W),
    "model.img_cond_pos_embed": (1, 2 * 3 * 4, W),
    "model.final_layer.norm_final.weight": (W,),
}


def index_of_rdt_1b() -> dict[str, tuple[int, ...]]:
    """Returns the names and shapes of the weights of rdt-1b. The sizes are those in its published config.json."""
    w, depth = 2048, 28
    shapes: dict[str, tuple[int, ...]] = {
        "model.x_pos_embed": (1, 67, w),
        "model.lang_cond_pos_embed": (1, 1024, w),
        "model.img_cond_pos_embed": (1, 2 * 3 * 729, w),
        "model.final_layer.norm_final.weight": (w,),
    }
    layers = {"model.final_layer.ffn_final.fc1": (w, w), "model.final_layer.ffn_final.fc2": (128, w)}
    for name in ("t_embedder", "freq_embedder"):
        layers |= {f"model.{name}.mlp.0": (w, 256), f"model.{name}.mlp.2": (w, w)}
    for name, width in (("lang_adaptor", 4096), ("img_adaptor", 1152), ("state_adaptor", 256)):
        layers |= {f"{name}.0": (w, width), f"{name}.2": (w, w)}
    layers["state_adaptor.4"] = (w, w)
    for number in range(depth):
        block = f"model.blocks.{number}"
        square = ("attn.proj", "cross_attn.q", "cross_attn.proj", "ffn.fc1", "ffn.fc2")
        layers |= {f"{block}.{name}": (w, w) for name in square}
        layers |= {f"{block}.attn.qkv": (3 * w, w), f"{block}.cross_attn.kv": (2 * w, w)}
        shapes |= {f"{block}.norm{which}.weight": (w,) for which in (1, 2, 3)}
        shapes |= {
            f"{block}.{kind}.{projection}_norm.weight": (64,) for kind in ("attn", "cross_attn") for projection in "qk"
        }
    for name, shape in layers.items():
        shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    return shapes


def test_rdt_1b_has_the_names_and_shapes_of_the_published_weights() -> None:
    with torch.device("meta"):
        policy = RDTPolicy(SIZES["rdt-1b"], RDTShape())
    shapes = {name: tuple(value.shape) for name, value in published_state(policy).items()}
    assert shapes == index_of_rdt_1b()
    num_weights = sum(math.prod(shape) for shape in shapes.values())
    assert 1.20e9 < num_weights < 1.25e9, "the published file is called 1.2 B"


def published_shapes() -> dict[str, tuple[int, ...]]:
    shapes = dict(TABLES)
    layers = dict(LAYERS)
    for number in range(DEPTH):
        layers |= {f"model.blocks.{number}.{name}": shape for name, shape in BLOCK_LAYERS.items()}
        shapes |= {f"model.blocks.{number}.{name}.weight": (size,) for name, size in BLOCK_NORMS.items()}
    for name, shape in layers.items():
        shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    return shapes


def random_weights(dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randn(shape, generator=generator).to(dtype) for name, shape in published_shapes().items()}


def make_policy(size: RDTSize = SIZE) -> RDTPolicy:
    return RDTPolicy(size, SHAPE, PatchEncoder(64))


def write_checkpoint(folder: Path, kind: str, tensors: dict[str, Tensor]) -> Path:
    """Writes a checkpoint in one of the formats of published checkpoints, and returns its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = {"action_dim": 12, "pred_horizon": 4, "img_pos_embed_config": [["image", [2, 3, -4]]]}
    (folder / "config.json").write_text(json.dumps(settings))
    names = sorted(tensors)
    halves = (names[::2], names[1::2])
    if kind == "safetensors":
        save_file(tensors, folder / "model.safetensors")
    elif kind == "bin":
        torch.save(tensors, folder / "pytorch_model.bin")
    else:
        base, suffix, save = {
            "safetensors shards": ("model", "safetensors", save_file),
            "bin shards": ("pytorch_model", "bin", torch.save),
        }[kind]
        files = {}
        for number, half in enumerate(halves, 1):
            file = f"{base}-{number:05d}-of-00002.{suffix}"
            save({name: tensors[name] for name in half}, folder / file)
            files |= dict.fromkeys(half, file)
        (folder / f"{base}.{suffix}.index.json").write_text(json.dumps({"weight_map": files}))
    return folder


def test_names_and_shapes_are_the_published_ones() -> None:
    shapes = {name: tuple(value.shape) for name, value in published_state(make_policy()).items()}
    assert shapes == published_shapes()


@pytest.mark.parametrize("kind", ["safetensors", "bin", "safetensors shards", "bin shards"])
def test_weights_load_by_name(kind: str, tmp_path: Path) -> None:
    tensors, policy = random_weights(torch.bfloat16), make_policy()
    others = {name: value.clone() for name, value in policy.state_dict().items() if name not in published_shapes()}
    load_published(policy, write_checkpoint(tmp_path, kind, tensors))
    state = policy.state_dict()
    for name, value in tensors.items():
        assert torch.equal(state[name], value.float()) and state[name].dtype == torch.float32, name
    for name, value in others.items():  # the image encoder, statistics and background do not change
        assert torch.equal(state[name], value), name
    assert any(name.startswith("vision.") for name in others)


def test_an_exported_checkpoint_loads_with_its_size_and_shape(tmp_path: Path) -> None:
    policy, other = make_policy(), make_policy()
    export_published(policy, tmp_path / "out")
    assert load_file(tmp_path / "out" / "model.safetensors").keys() == published_shapes().keys()
    load_published(other, tmp_path / "out")
    for name, value in published_state(policy).items():
        assert torch.equal(published_state(other)[name], value), name
    assert published_shape(tmp_path / "out") == (SIZE, SHAPE)
    settings = json.loads((tmp_path / "out" / "config.json").read_text())
    assert settings["rdt"] == {"hidden_size": W, "depth": DEPTH, "num_heads": HEADS}
    assert settings["pred_horizon"] == 4 and settings["img_cond_len"] == 24 and settings["lang_token_dim"] == 10
    assert published_shape(write_checkpoint(tmp_path / "theirs", "bin", random_weights()))[1] == SHAPE


@pytest.mark.parametrize(("objective", "described"), [("diffusion", True), ("regression", False)])
def test_an_exported_checkpoint_describes_its_own_sampler(objective: str, described: bool) -> None:
    config = RDTConfig(objective=objective, noise_steps=100, sample_steps=10)
    settings = json.loads(published_files(make_policy(), config)["config.json"])
    scheduler = settings.get("noise_scheduler", {})
    assert bool(scheduler) is described
    if described:
        assert (scheduler["num_train_timesteps"], scheduler["num_inference_timesteps"]) == (100, 10)


def test_an_error_lists_every_mismatch(tmp_path: Path) -> None:
    tensors = random_weights()
    del tensors["model.blocks.1.attn.q_norm.weight"]
    tensors["model.blocks.0.attn.rotary"] = torch.zeros(3)
    tensors["img_adaptor.0.weight"] = torch.zeros(W, 1152)
    policy = make_policy()
    before = {name: value.clone() for name, value in policy.state_dict().items()}
    with pytest.raises(ConfigError) as error:
        load_published(policy, write_checkpoint(tmp_path, "safetensors", tensors))
    for text in (
        "1 missing (model.blocks.1.attn.q_norm.weight)",
        "1 unknown (model.blocks.0.attn.rotary)",
        f"1 of another shape (img_adaptor.0.weight ({W}, 1152), not ({W}, 64))",
        "a vision encoder of 1152",
    ):
        assert text in str(error.value), str(error.value)
    assert all(torch.equal(value, before[name]) for name, value in policy.state_dict().items())


def test_an_error_names_the_size_that_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(rdt_checkpoint.SIZES, "rdt-other", SIZE)
    folder = write_checkpoint(tmp_path, "safetensors", random_weights())
    with pytest.raises(ConfigError, match=r"fits size=rdt-other, a text encoder of 10 and a vision encoder of 64"):
        load_published(make_policy(RDTSize(32, 3, 4)), folder)
    monkeypatch.delitem(rdt_checkpoint.SIZES, "rdt-other")
    with pytest.raises(ConfigError, match="fits width 16, depth 2, heads 2"):
        load_published(make_policy(RDTSize(32, 3, 4)), folder)


class Code:
    """Object that an unrestricted load of a pickle would create."""


def test_unsafe_and_damaged_checkpoints_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no checkpoint: neither model.safetensors nor pytorch_model.bin"):
        load_published(make_policy(), tmp_path)
    torch.save({"model": Code()}, tmp_path / "pytorch_model.bin")
    with pytest.raises(ConfigError, match="pytorch_model.bin cannot be read"):
        load_published(make_policy(), tmp_path)
    torch.save([torch.zeros(1)], tmp_path / "pytorch_model.bin")
    with pytest.raises(ConfigError, match="does not contain a dict of weights"):
        load_published(make_policy(), tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"\x08" * 20)
    with pytest.raises(ConfigError, match="model.safetensors cannot be read"):
        load_published(make_policy(), tmp_path)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../model.safetensors"}}')
    with pytest.raises(ConfigError, match="names files outside its folder"):
        load_published(make_policy(), elsewhere)
    with pytest.raises(ConfigError, match="is not an RDT checkpoint"):
        published_shape(write_checkpoint(tmp_path / "small", "safetensors", {"a.b": torch.zeros(1)}))
