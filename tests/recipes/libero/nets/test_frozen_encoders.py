"""Frozen encoders load from a local folder, encode each instruction once, and report missing or damaged files."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
import torch

from powerband.core.errors import ConfigError
from powerband.recipes.libero.nets import frozen_encoders
from powerband.recipes.libero.nets.frozen_encoders import FrozenImageEncoder, encode_language

INSTRUCTIONS = ("open the drawer", "close it", "turn on the stove")
PATCH, SIDE = 14, 28


@pytest.fixture(scope="module")
def transformers():
    return pytest.importorskip("transformers", reason="transformers is not installed: pip install powerband[encoders]")


@pytest.fixture(scope="module")
def t5(transformers, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the folder of a random T5 encoder, whose tokenizer has one token per word."""
    tokenizers = pytest.importorskip("tokenizers")
    folder = tmp_path_factory.mktemp("t5")
    torch.manual_seed(0)
    config = transformers.T5Config(vocab_size=40, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2)
    transformers.T5EncoderModel(config).save_pretrained(folder)
    vocabulary = ["<pad>", "</s>", "<unk>", *sorted({word for text in INSTRUCTIONS for word in text.split()})]
    model = tokenizers.models.WordLevel({word: number for number, word in enumerate(vocabulary)}, unk_token="<unk>")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    fast_tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    )
    fast_tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def siglip(transformers, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the folder of a random SigLIP vision encoder with the settings of its image processor."""
    folder = tmp_path_factory.mktemp("siglip")
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.SiglipVisionConfig(image_size=SIDE, patch_size=PATCH, **sizes)
    transformers.SiglipVisionModel(config).save_pretrained(folder)
    settings = {"size": {"height": SIDE, "width": SIDE}, "resample": 3, "rescale_factor": 1 / 255}
    settings |= {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.5, 0.25, 0.2]}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    return folder


def test_instruction_tokens_are_the_padded_outputs_of_the_encoder(transformers, t5: Path, tmp_path: Path) -> None:
    tokens, mask = encode_language(t5, INSTRUCTIONS, tmp_path)
    assert tokens.shape == (3, 4, 16) and mask.sum(1).tolist() == [3, 2, 4]
    assert not tokens[~mask].any()
    net = transformers.T5EncoderModel.from_pretrained(t5).bfloat16()
    tokenizer = transformers.AutoTokenizer.from_pretrained(t5)
    with torch.no_grad():
        expected = net(**tokenizer(INSTRUCTIONS[0], return_tensors="pt")).last_hidden_state[0].float()
    assert torch.equal(tokens[0, :3], expected)
    assert not torch.allclose(tokens[0, 0], tokens[2, 0])


def test_an_instruction_is_encoded_once_for_each_encoder(
    t5: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = encode_language(t5, INSTRUCTIONS, tmp_path)
    encoded: list[list[str]] = []
    t5_tokens = frozen_encoders._t5_tokens

    def recording_t5_tokens(folder: Path, instructions: list[str], device: torch.device) -> list[torch.Tensor]:
        encoded.append(instructions)
        return t5_tokens(folder, instructions, device)

    monkeypatch.setattr(frozen_encoders, "_t5_tokens", recording_t5_tokens)
    again, mask = encode_language(t5, [INSTRUCTIONS[1], "open it"], tmp_path)
    assert encoded == [["open it"]] and mask.tolist() == [[True, True]] * 2
    assert torch.equal(again[0], first[1, :2])
    copied = tmp_path / "other"
    copied.mkdir()
    for path in t5.iterdir():
        (copied / path.name).write_bytes(path.read_bytes())
    encode_language(copied, INSTRUCTIONS, tmp_path)  # a copy in another folder counts as the same encoder
    (copied / "config.json").write_text((copied / "config.json").read_text() + " ")
    encode_language(copied, INSTRUCTIONS, tmp_path)
    assert encoded == [["open it"], list(INSTRUCTIONS)]
    cached = sorted(tmp_path.glob("*.safetensors"))
    assert len(cached) == 7
    cached[0].write_bytes(b"cut")
    with pytest.raises(ConfigError, match="cannot be read .* Remove it"):
        encode_language(t5, [*INSTRUCTIONS, "open it"], tmp_path)
        encode_language(copied, INSTRUCTIONS, tmp_path)


def test_images_are_preprocessed_with_the_settings_in_the_folder(transformers, siglip: Path) -> None:
    vision = FrozenImageEncoder(siglip)
    assert (vision.tokens, vision.width) == (4, 16)
    images = torch.randint(256, (3, SIDE, SIDE, 3), dtype=torch.uint8)
    features = vision(images)
    pixels = (images.permute(0, 3, 1, 2) / 255 - vision.mean.view(1, 3, 1, 1)) / vision.std.view(1, 3, 1, 1)
    net = transformers.SiglipVisionModel.from_pretrained(siglip)
    with torch.no_grad():
        expected = net(pixel_values=pixels).last_hidden_state
    assert features.shape == (3, 4, 16) and not features.requires_grad
    torch.testing.assert_close(features, expected, rtol=1e-4, atol=1e-5)
    uniform = torch.full((1, 60, 30, 3), 200, dtype=torch.uint8)  # higher than wide, and of one colour
    preprocessed = vision.preprocess(uniform)
    assert preprocessed.shape == (1, 3, SIDE, SIDE)
    assert preprocessed[..., :5].abs().max() < 0.02 and preprocessed[..., -5:].abs().max() < 0.02  # padding is 0
    normalized_colour = (200 / 255 - vision.mean) / vision.std
    torch.testing.assert_close(preprocessed[0, :, 14, 14], normalized_colour, rtol=0.02, atol=0.02)


def test_the_name_identifies_the_encoder_and_deepcopy_does_not_copy_it(siglip: Path, tmp_path: Path) -> None:
    vision = FrozenImageEncoder(siglip)
    assert copy.deepcopy({"vision": vision})["vision"] is vision
    assert vision.name == FrozenImageEncoder(siglip).name and siglip.name in vision.name
    for path in siglip.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    settings = json.loads((tmp_path / "preprocessor_config.json").read_text())
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings | {"image_mean": [0.5] * 3}))
    assert FrozenImageEncoder(tmp_path).name.split("-")[-1] != vision.name.split("-")[-1]


def test_an_error_names_what_is_missing_and_the_fix(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"text_encoder=.*nowhere is not a folder. Download google/t5-v1_1-xxl"):
        encode_language(tmp_path / "nowhere", INSTRUCTIONS, tmp_path)
    with pytest.raises(ConfigError, match=r"has no config.json.*a built-in encoder gives"):
        encode_language(tmp_path, INSTRUCTIONS, tmp_path)
    with pytest.raises(ConfigError, match=r"vision_encoder=.*is not a folder. Download google/siglip-so400m"):
        FrozenImageEncoder(tmp_path / "nowhere")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match="has no weights as safetensors"):
        encode_language(tmp_path, INSTRUCTIONS, tmp_path)
    with pytest.raises(ConfigError, match="has no preprocessor_config.json"):
        FrozenImageEncoder(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"cut")
    with pytest.raises(ConfigError, match="An instruction is empty"):
        encode_language(tmp_path, ["open it", " "], tmp_path)


def test_a_damaged_encoder_is_refused(transformers, siglip: Path, tmp_path: Path) -> None:
    for path in siglip.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes()[:100])
    with pytest.raises(ConfigError, match="cannot be read as SiglipVisionModel"):
        FrozenImageEncoder(tmp_path)
