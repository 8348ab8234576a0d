"""Loads frozen encoders from a local folder with transformers: T5 for instructions, SigLIP for images. No downloads.

The published RDT uses T5-v1.1-XXL (4096 features per token) and SigLIP-so400m-patch14-384 (729 patches of 1152
features). Suffixes: K instructions, L tokens, n images, H, W pixels, P patches, D width.
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

from powerband.core.errors import ConfigError
from powerband.recipes.libero.nets.image_jitter import jitter_images

LANGUAGE_ADVICE = (
    "Download google/t5-v1_1-xxl into this folder: config.json, the files of its tokenizer, and weights as safetensors "
    "(if only pytorch_model.bin is published, load it and call save_pretrained once). Without text_encoder, a built-in "
    "encoder gives every word a fixed vector."
)
VISION_ADVICE = (
    "Download google/siglip-so400m-patch14-384 into this folder: config.json, preprocessor_config.json and weights as "
    "safetensors. Without vision_encoder, a small encoder is trained with the policy."
)
BICUBIC = 3
"""Value of `resample` in preprocessor_config.json, in Pillow's numbering."""
SAMPLES, SAMPLE_BYTES = 256, 65_536
"""Number and size of the samples of a weight file that identify an encoder."""
FILTERS = {0: "nearest-exact", 2: "bilinear", BICUBIC: "bicubic"}


def encode_language(
    folder: Path, instructions: Sequence[str], cache_dir: Path, device: torch.device | str = "cpu"
) -> tuple[Tensor, Tensor]:
    """Encodes instructions with T5; each is encoded once, and cached in `cache_dir`.

    Args:
        folder: Folder of a T5 encoder with its tokenizer.
        instructions: K instructions, none of them empty.
        cache_dir: Folder of the cached tokens; it is created if it is missing.
        device: Device of the encoder.

    Returns:
        Tokens (K instructions, L tokens, D features) float32 on the CPU, 0 after an instruction's end, and their mask
        (K, L) bool, True for tokens.

    Raises:
        ConfigError: The folder has no encoder, transformers is not installed, or an instruction is empty.
    """
    folder = check_folder(folder, "text_encoder", ("config.json",), LANGUAGE_ADVICE)
    for instruction in instructions:
        if not instruction.strip():
            raise ConfigError(
                "An instruction is empty. Record an instruction for each task, such as 'open the drawer'."
            )
    if not instructions:
        raise ConfigError("The demonstrations have no instruction. Record one instruction per task.")
    encoder = fingerprint(folder)
    paths = [cache_dir / f"{_digest(encoder, instruction)}.safetensors" for instruction in instructions]
    missing = {text: path for text, path in zip(instructions, paths, strict=True) if not path.exists()}
    if missing:
        encoded = _t5_tokens(folder, list(missing), torch.device(device))
        for path, tokens in zip(missing.values(), encoded, strict=True):
            _write_tokens(path, tokens)
    return pad([_read_tokens(path) for path in paths])


class FrozenImageEncoder:
    """A SigLIP vision encoder: encodes images of any size as one feature vector per patch, from its last layer.

    The class is not an nn.Module, so that the encoder is not trained, saved or copied with the policy that uses it.

    Attributes:
        name: Name that identifies the encoder, its weights and its preprocessing in the feature cache.
        tokens: Number of patches, P.
        width: Features per patch, D.
    """

    def __init__(self, folder: Path, device: torch.device | str = "cpu") -> None:
        """
        Args:
            folder: Folder of the encoder and of its image processor's settings.
            device: Device of the encoder, which computes in bf16 on CUDA and in float32 on a CPU.

        Raises:
            ConfigError: The folder has no encoder, or transformers is not installed.
        """
        folder = check_folder(folder, "vision_encoder", ("config.json", "preprocessor_config.json"), VISION_ADVICE)
        self.name = f"{folder.name}-{fingerprint(folder)[:12]}"
        self.net = _load_pretrained("SiglipVisionModel", folder, VISION_ADVICE).to(device)
        if self.net.device.type == "cuda":
            self.net = self.net.to(torch.bfloat16)
        settings = json.loads((folder / "preprocessor_config.json").read_text(encoding="utf-8"))
        size = settings["size"]
        self.size = (size["height"], size["width"])
        self.scale = settings.get("rescale_factor", 1 / 255) if settings.get("do_rescale", True) else 1.0
        self.filter = FILTERS.get(settings.get("resample", BICUBIC), "bicubic")
        normalizes = settings.get("do_normalize", True)
        self.mean = torch.tensor(settings["image_mean"] if normalizes else [0.0] * 3, device=device)
        self.std = torch.tensor(settings["image_std"] if normalizes else [1.0] * 3, device=device)
        self.width = self.net.config.hidden_size
        self.tokens = (self.net.config.image_size // self.net.config.patch_size) ** 2

    def __deepcopy__(self, memo: dict) -> FrozenImageEncoder:
        return self

    @torch.no_grad()
    def __call__(self, images_nHWC: Tensor, draws: Tensor | None = None) -> Tensor:
        """Encodes images.

        Args:
            images_nHWC: Images (n, H rows of pixels, W columns, 3) uint8.
            draws: Random parameters of `jitter_images` (n, NUM_JITTER_PARAMS); None does not change the images.

        Returns:
            Features (n, P, D) in the dtype of the encoder.
        """
        images_nHWC = images_nHWC.to(self.net.device)
        pixels = self.preprocess(images_nHWC if draws is None else jitter_images(images_nHWC, draws))
        return self.net(pixel_values=pixels.to(self.net.dtype)).last_hidden_state

    def preprocess(self, images_nHWC: Tensor) -> Tensor:
        """Converts n images (n, height, width, 3) uint8 to the encoder's inputs: square, resized and normalised.

        The inputs are (n, 3, rows, columns) float32, of the size that the encoder expects.

        Images that are not square are padded on both sides with the mean colour, as in the published RDT.
        """
        height, width = images_nHWC.shape[1:3]
        pixels = images_nHWC.permute(0, 3, 1, 2).float() * self.scale
        if height != width:
            side = max(height, width)
            square = self.mean.view(1, 3, 1, 1).repeat(len(pixels), 1, side, side)
            top, left = (side - height) // 2, (side - width) // 2
            square[:, :, top : top + height, left : left + width] = pixels
            pixels = square
        if pixels.shape[-2:] != self.size:
            smooth: dict[str, Any] = {"antialias": True, "align_corners": False}
            options = {} if self.filter == "nearest-exact" else smooth
            pixels = F.interpolate(pixels, self.size, mode=self.filter, **options)
            pixels = pixels.clamp(0, 255 * self.scale)
        return (pixels - self.mean.view(1, 3, 1, 1)) / self.std.view(1, 3, 1, 1)


def pad(instructions: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Pads the tokens of K instructions, K tensors (L_k tokens, D features), with zeros to the largest length L.

    Returns:
        The padded tokens (K, L, D), and their mask (K, L) bool, True for tokens and False for padding.
    """
    tokens = torch.nn.utils.rnn.pad_sequence(instructions, batch_first=True)
    lengths = torch.tensor([len(each) for each in instructions])
    return tokens, torch.arange(tokens.shape[1]) < lengths.unsqueeze(1)


def check_folder(folder: Path, option: str, files: tuple[str, ...], advice: str) -> Path:
    """Checks that a folder has certain files and weights as safetensors; returns it with ``~`` expanded.

    Args:
        folder: Folder of an encoder.
        option: Option that names the folder, for the error message.
        files: Names of the files that the folder must have.
        advice: End of the error message.

    Raises:
        ConfigError: The folder or a file is missing.
    """
    folder = Path(folder).expanduser()
    if not folder.is_dir():
        raise ConfigError(f"{option}={folder} is not a folder. {advice}")
    for name in files:
        if not (folder / name).is_file():
            raise ConfigError(f"{option}={folder} has no {name}. {advice}")
    if not list(folder.glob("*.safetensors")):
        raise ConfigError(f"{option}={folder} has no weights as safetensors. {advice}")
    return folder


def fingerprint(folder: Path) -> str:
    """Returns a SHA-256 hex digest of an encoder: of its settings, and of samples of its weight files."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.json")):
        digest.update(path.name.encode() + path.read_bytes())
    for path in sorted([*folder.glob("*.safetensors"), *folder.glob("*.model")]):
        size = path.stat().st_size
        digest.update(f"{path.name}:{size}".encode())
        with path.open("rb") as file:  # all bytes of a T5 would take a minute
            for start in range(0, size, max(SAMPLE_BYTES, size // SAMPLES)):
                file.seek(start)
                digest.update(file.read(SAMPLE_BYTES))
    return digest.hexdigest()


def _digest(encoder: str, instruction: str) -> str:
    return hashlib.sha256(f"{encoder}\n{instruction}".encode()).hexdigest()


@torch.no_grad()
def _t5_tokens(folder: Path, instructions: list[str], device: torch.device) -> list[Tensor]:
    """Encodes each instruction as tokens (tokens, features) float32."""
    net = _load_pretrained("T5EncoderModel", folder, LANGUAGE_ADVICE).to(device, torch.bfloat16)  # fp16 overflows
    tokenizer = _load_pretrained("AutoTokenizer", folder, LANGUAGE_ADVICE)
    tokens = []
    for instruction in instructions:
        ids = tokenizer(instruction, return_tensors="pt").input_ids.to(device)
        tokens.append(net(input_ids=ids).last_hidden_state[0].float().cpu())
    return tokens


def _load_pretrained(kind: str, folder: Path, advice: str) -> Any:
    """Loads a tokenizer or a frozen network of transformers, from the folder only."""
    try:
        import transformers
    except ImportError:
        raise ConfigError(
            f"The encoder in {folder} needs the package transformers. Run pip install 'powerband[encoders]', or "
            f"leave the option of this folder (text_encoder= or vision_encoder=) empty."
        ) from None
    options = {} if kind == "AutoTokenizer" else {"use_safetensors": True}
    try:
        result = getattr(transformers, kind).from_pretrained(str(folder), local_files_only=True, **options)
    except (OSError, ValueError, KeyError, ImportError) as error:
        message = " ".join(str(error).split())[:300]
        raise ConfigError(f"{folder} cannot be read as {kind} ({message}). {advice}") from error
    return result if kind == "AutoTokenizer" else result.eval().requires_grad_(False)


def _write_tokens(path: Path, tokens: Tensor) -> None:
    """Writes tokens to a temporary file and renames it, because several ranks may encode the same instruction."""
    from safetensors.torch import save_file

    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".part{os.getpid()}")
    save_file({"tokens": tokens.contiguous()}, part)
    os.replace(part, path)


def _read_tokens(path: Path) -> Tensor:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)["tokens"]
    except (OSError, SafetensorError, KeyError) as error:
        raise ConfigError(
            f"{path}, a file of cached instruction tokens, cannot be read ({error}). Remove it; the next run writes it "
            f"again."
        ) from error
