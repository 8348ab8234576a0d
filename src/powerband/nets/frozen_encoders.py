"""Frozen encoders from a folder: T5 for instructions, SigLIP for pictures, by transformers. Nothing is downloaded.

The published RDT looks through T5-v1.1-XXL (4096 numbers a token) and SigLIP-so400m-patch14-384 (729 patches of 1152).
Suffixes: K instructions, L tokens, n pictures, H, W pixels, P patches, D width.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from powerband.core.flags import ConfigError
from powerband.nets.jitter import jittered

LANGUAGE = (
    "Put google/t5-v1_1-xxl there: config.json, its tokenizer's files, and weights as safetensors (where only "
    "pytorch_model.bin is published, load and save_pretrained it once). Without text_encoder a built-in encoder is "
    "used, which gives every word a vector of its own."
)
VISION = (
    "Put google/siglip-so400m-patch14-384 there: config.json, preprocessor_config.json and weights as safetensors. "
    "Without vision_encoder a small built-in one is used, which is trained with the policy."
)
BICUBIC = 3
"""Of preprocessor_config.json's `resample`, as Pillow numbers it."""
FILTERS = {0: "nearest-exact", 2: "bilinear", BICUBIC: "bicubic"}


def encode_language(
    folder: Path, instructions: Sequence[str], cache_dir: Path, device: torch.device | str = "cpu"
) -> tuple[Tensor, Tensor]:
    """Tokens of instructions; each is encoded once, and kept in `cache_dir`.

    Args:
        folder: Of a T5 encoder with its tokenizer.
        instructions: One or more, none of them empty.
        cache_dir: Made where it is not there.
        device: Where the encoder computes.

    Returns:
        Tokens (K, L, D) float32 on the CPU, zero behind an instruction's end; which are there, (K, L) bool.

    Raises:
        ConfigError: No encoder in the folder, no transformers, or an empty instruction.
    """
    folder = checked(folder, "text_encoder", ("config.json",), LANGUAGE)
    for instruction in instructions:
        if not instruction.strip():
            raise ConfigError("an instruction is empty. Write what is to be done, such as 'open the drawer'.")
    if not instructions:
        raise ConfigError("there is no instruction. Give one for each task.")
    mark = fingerprint(folder)
    paths = [cache_dir / f"{_digest(mark, instruction)}.safetensors" for instruction in instructions]
    missing = {said: path for said, path in zip(instructions, paths, strict=True) if not path.exists()}
    if missing:
        encoded = _t5_tokens(folder, list(missing), torch.device(device))
        for path, tokens in zip(missing.values(), encoded, strict=True):
            _keep(path, tokens)
    return padded([_kept(path) for path in paths])


class FrozenVision:
    """A SigLIP vision encoder: pictures of any size -> its patches' last features.

    It is no module: it is neither trained, nor saved, nor copied with the policy that holds it.

    Attributes:
        name: Tells this encoder, its weights and its pictures from others: for the cache of features.
        tokens, width: P and D.
    """

    def __init__(self, folder: Path, device: torch.device | str = "cpu") -> None:
        """
        Args:
            folder: Of the encoder and its image processor's settings.
            device: Where it computes: bf16 on CUDA, float32 on a CPU.

        Raises:
            ConfigError: No encoder in the folder, or no transformers.
        """
        folder = checked(folder, "vision_encoder", ("config.json", "preprocessor_config.json"), VISION)
        self.name = f"{folder.name}-{fingerprint(folder)[:12]}"
        self.net = _loaded("SiglipVisionModel", folder, VISION).to(device)
        if self.net.device.type == "cuda":
            self.net = self.net.to(torch.bfloat16)
        settings = json.loads((folder / "preprocessor_config.json").read_text(encoding="utf-8"))
        size = settings["size"]
        self.size = (size["height"], size["width"])
        self.scale = settings.get("rescale_factor", 1 / 255) if settings.get("do_rescale", True) else 1.0
        self.filter = FILTERS.get(settings.get("resample", BICUBIC), "bicubic")
        normal = settings.get("do_normalize", True)
        self.mean = torch.tensor(settings["image_mean"] if normal else [0.0] * 3, device=device)
        self.std = torch.tensor(settings["image_std"] if normal else [1.0] * 3, device=device)
        self.width = self.net.config.hidden_size
        self.tokens = (self.net.config.image_size // self.net.config.patch_size) ** 2

    def __deepcopy__(self, memo: dict) -> FrozenVision:
        return self

    @torch.no_grad()
    def __call__(self, pictures_nHWC: Tensor, draws: Tensor | None = None) -> Tensor:
        """(n, H, W, 3) uint8, and what `jittered` does to them (n, DRAWS) or None -> (n, P, D) as it computes them."""
        pictures_nHWC = pictures_nHWC.to(self.net.device)
        seen = self.prepared(pictures_nHWC if draws is None else jittered(pictures_nHWC, draws))
        return self.net(pixel_values=seen.to(self.net.dtype)).last_hidden_state

    def prepared(self, pictures_nHWC: Tensor) -> Tensor:
        """(n, H, W, 3) uint8 -> (n, 3, h, w) float32 as the encoder was trained on: square, resized, normalised.

        What is not square is padded on both sides with the mean colour, as the published RDT does.
        """
        height, width = pictures_nHWC.shape[1:3]
        seen = pictures_nHWC.permute(0, 3, 1, 2).float() * self.scale
        if height != width:
            side = max(height, width)
            square = self.mean.view(1, 3, 1, 1).repeat(len(seen), 1, side, side)
            top, left = (side - height) // 2, (side - width) // 2
            square[:, :, top : top + height, left : left + width] = seen
            seen = square
        if seen.shape[-2:] != self.size:
            smooth = {} if self.filter == "nearest-exact" else {"antialias": True, "align_corners": False}
            seen = F.interpolate(seen, self.size, mode=self.filter, **smooth)
            seen = seen.clamp(0, 255 * self.scale)
        return (seen - self.mean.view(1, 3, 1, 1)) / self.std.view(1, 3, 1, 1)


def padded(instructions: list[Tensor]) -> tuple[Tensor, Tensor]:
    """K tensors (L_k, D) -> (K, L, D) with zeros behind each, and which are there (K, L) bool."""
    tokens = torch.nn.utils.rnn.pad_sequence(instructions, batch_first=True)
    lengths = torch.tensor([len(each) for each in instructions])
    return tokens, torch.arange(tokens.shape[1]) < lengths.unsqueeze(1)


def checked(folder: Path, word: str, names: tuple[str, ...], fix: str) -> Path:
    """`folder`, where it is there with `names` and weights as safetensors.

    Raises:
        ConfigError: What is missing, and what to put there.
    """
    folder = Path(folder).expanduser()
    if not folder.is_dir():
        raise ConfigError(f"{word}={folder}: there is no such folder. {fix}")
    for name in names:
        if not (folder / name).is_file():
            raise ConfigError(f"{word}={folder}: it has no {name}. {fix}")
    if not list(folder.glob("*.safetensors")):
        raise ConfigError(f"{word}={folder}: it has no weights as safetensors. {fix}")
    return folder


def fingerprint(folder: Path) -> str:
    """Tells one encoder's folder from another's: what its settings say, and names and sizes of its weights."""
    said = hashlib.sha256()
    for path in sorted(folder.glob("*.json")):
        said.update(path.name.encode() + path.read_bytes())
    for path in sorted([*folder.glob("*.safetensors"), *folder.glob("*.model")]):
        said.update(f"{path.name}:{path.stat().st_size}".encode())
    return said.hexdigest()


def _digest(mark: str, instruction: str) -> str:
    return hashlib.sha256(f"{mark}\n{instruction}".encode()).hexdigest()


@torch.no_grad()
def _t5_tokens(folder: Path, instructions: list[str], device: torch.device) -> list[Tensor]:
    """Each instruction's tokens (L_k, D) float32."""
    net = _loaded("T5EncoderModel", folder, LANGUAGE).to(device, torch.bfloat16)  # fp16 overflows in T5
    tokenizer = _loaded("AutoTokenizer", folder, LANGUAGE)
    found = []
    for instruction in instructions:
        ids = tokenizer(instruction, return_tensors="pt").input_ids.to(device)
        found.append(net(input_ids=ids).last_hidden_state[0].float().cpu())
    return found


def _loaded(kind: str, folder: Path, fix: str) -> Any:
    """A tokenizer, or a network that is not trained, of transformers; of this folder alone."""
    try:
        import transformers
    except ImportError:
        raise ConfigError(
            f"{folder} needs transformers: pip install 'powerband[encoders]'. Or leave this setting empty."
        ) from None
    words = {} if kind == "AutoTokenizer" else {"use_safetensors": True}
    try:
        made = getattr(transformers, kind).from_pretrained(str(folder), local_files_only=True, **words)
    except (OSError, ValueError, KeyError, ImportError) as error:
        said = " ".join(str(error).split())[:300]
        raise ConfigError(f"{folder} cannot be read as {kind} ({said}). {fix}") from error
    return made if kind == "AutoTokenizer" else made.eval().requires_grad_(False)


def _keep(path: Path, tokens: Tensor) -> None:
    """Writes beside `path` and renames: several ranks may encode the same."""
    from safetensors.torch import save_file

    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".part{os.getpid()}")
    save_file({"tokens": tokens.contiguous()}, part)
    os.replace(part, path)


def _kept(path: Path) -> Tensor:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)["tokens"]
    except (OSError, SafetensorError, KeyError) as error:
        raise ConfigError(f"{path} cannot be read ({error}). Remove it, and it is made again.") from error
