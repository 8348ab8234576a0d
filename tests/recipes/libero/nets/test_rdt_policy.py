"""RDTPolicy: normalisation is exact, what is not there is not seen, instructions and pictures are; its encoders."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from powerband.core.errors import ConfigError
from powerband.recipes.libero.nets.hashed_tokens import WIDTH, hash_instructions, instruction_similarity
from powerband.recipes.libero.nets.image_jitter import MAX_COLOUR_CHANGE, MAX_SHIFT, NUM_JITTER_PARAMS, jitter_images
from powerband.recipes.libero.nets.rdt import RDTShape, RDTSize
from powerband.recipes.libero.nets.rdt_policy import RDTPolicy
from powerband.recipes.libero.nets.small_vision import PatchEncoder

V, T, PIXELS = 12, 4, 32
SHAPE = RDTShape(
    horizon=T, vector=V, language_tokens=8, frames=2, cameras=3, patches=4, language_width=WIDTH, patch_width=64
)
SAID = ("open the top drawer", "close the top drawer", "stop it")
THERE = torch.tensor([True] * 8 + [False] * 4)
STATISTICS = {
    "state_mean": torch.linspace(-3, 3, V),
    "state_std": torch.linspace(0.1, 2, V),
    "action_mean": torch.linspace(1, -1, V),
    "action_std": torch.linspace(0.5, 5, V),
    "state_mask": THERE,
    "action_mask": THERE,
}


def policy() -> RDTPolicy:
    torch.manual_seed(0)
    made = RDTPolicy(RDTSize(32, 4, 4), SHAPE, PatchEncoder(64))
    nn.init.normal_(made.model.final_layer.ffn_final.fc2.weight)
    for weight in (made.background, made.model.lang_cond_pos_embed):  # as learned: tokens' places differ
        nn.init.normal_(weight)
    made.set_statistics(**STATISTICS)
    made.set_instructions(*hash_instructions(SAID))
    return made.eval()


def seen(rows: int = 3, cameras: int = 2) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(1)
    return {
        "images": torch.randint(256, (rows, 2, cameras, PIXELS, PIXELS, 3), dtype=torch.uint8, generator=draw),
        "image_mask": torch.ones(rows, 2, cameras, dtype=torch.bool),
        "state": torch.randn(rows, V, generator=draw),
        "state_mask": THERE.repeat(rows, 1),
        "task": torch.arange(rows) % len(SAID),
        "hz": torch.full((rows,), 20.0),
    }


@torch.no_grad()
def said(made: RDTPolicy, obs: dict[str, Tensor], noisy: Tensor | None = None, **words) -> Tensor:
    rows = len(obs["state"])
    if noisy is None:
        noisy = torch.randn(rows, T, V, generator=torch.Generator().manual_seed(2))
    return made(obs, noisy, THERE.repeat(rows, 1), torch.full((rows,), 300), **words)[0]


def hiding(rows: int = 3, cameras: int = 2, **some: Tensor) -> dict[str, Tensor]:
    """Nothing is hidden but what `some` says."""
    nothing = {name: torch.zeros(rows, dtype=torch.bool) for name in ("state", "language", "hz")}
    nothing["images"] = torch.zeros(rows, 2, cameras, dtype=torch.bool)
    return nothing | {"state_noise": torch.zeros(rows, V)} | some


def test_normalisation_is_exact_and_travels_with_the_policy() -> None:
    made = policy()
    raw = torch.randn(5, T, V)
    code = made.normalize("action", raw, THERE)
    wanted = (raw - STATISTICS["action_mean"]) / STATISTICS["action_std"]
    assert torch.equal(code, torch.where(THERE, wanted, 0.0))
    back = made.denormalize_actions(code, THERE)
    torch.testing.assert_close(back[..., :8], raw[..., :8])
    assert not back[..., 8:].any()
    other = RDTPolicy(RDTSize(32, 4, 4), SHAPE, PatchEncoder(64))
    other.load_state_dict(made.state_dict())
    other.set_instructions(*hash_instructions(SAID))
    assert torch.equal(said(made, seen()), said(other, seen()))
    other.set_statistics(**STATISTICS | {"state_mean": STATISTICS["state_mean"] + 1})
    shifted = seen() | {"state": seen()["state"] + 1}
    torch.testing.assert_close(said(other, shifted), said(made, seen()))
    assert not torch.allclose(said(other, seen()), said(made, seen()))


def test_numbers_that_are_not_there_are_not_seen() -> None:
    made, obs = policy(), seen()
    noisy = torch.randn(3, T, V)
    other, elsewhere = dict(obs), noisy.clone()
    other["state"] = torch.where(THERE, obs["state"], float("nan"))
    elsewhere[..., 8:] = 50.0
    assert torch.equal(said(made, obs, noisy), said(made, other, elsewhere))
    elsewhere[..., 7] += 1.0
    assert not torch.allclose(said(made, obs, noisy), said(made, other, elsewhere))
    less = {**obs, "state_mask": obs["state_mask"] & (torch.arange(V) > 0)}
    zero = {**obs, "state": torch.where(torch.arange(V) > 0, obs["state"], STATISTICS["state_mean"])}
    assert not torch.allclose(said(made, less), said(made, zero))  # that a number is missing can be known


def test_a_picture_that_is_missing_is_not_seen() -> None:
    made, obs = policy(), seen()
    obs["image_mask"][0, 0, 1] = obs["image_mask"][1] = False  # of one row one, of another all
    other = {**obs, "images": obs["images"].clone()}
    other["images"][~obs["image_mask"]] = 255
    first = said(made, obs)
    assert torch.equal(first, said(made, other)) and first.isfinite().all()
    other["images"][0, 0, 0] = 255
    changed = (said(made, other) - first).abs().amax((1, 2)) > 1e-6
    assert changed.tolist() == [True, False, False]
    whole = said(made, seen())
    assert not torch.allclose(first[0], whole[0]) and torch.allclose(first[2], whole[2], atol=1e-5)


def test_frames_and_cameras_are_told_apart() -> None:
    made, obs = policy(), seen()
    for axis in (1, 2):
        turned = {**obs, "images": obs["images"].flip(axis)}
        assert not torch.allclose(said(made, turned), said(made, obs), atol=1e-4)
    one = {**obs, "images": obs["images"][:, :, :1], "image_mask": obs["image_mask"][:, :, :1]}
    masked = {**obs, "image_mask": obs["image_mask"] & (torch.arange(2) == 0)}
    torch.testing.assert_close(said(made, one), said(made, masked), rtol=1e-4, atol=1e-5)


def test_features_are_pictures_that_were_encoded_before() -> None:
    made, obs = policy(), seen()
    with torch.no_grad():
        features = made.vision(obs["images"].flatten(0, 2)).unflatten(0, (3, 2, 2))
    known = {name: value for name, value in obs.items() if name != "images"} | {"features": features}
    torch.testing.assert_close(said(made, known), said(made, obs))
    blind = {name: value for name, value in obs.items() if not name.startswith("images")}
    assert said(made, blind).isfinite().all() and not torch.allclose(said(made, blind), said(made, obs), atol=1e-4)


def test_the_instruction_matters_and_can_be_another_one() -> None:
    made, obs = policy(), seen()
    first = said(made, obs)
    made.set_instructions(*hash_instructions(SAID[::-1]))
    second = said(made, obs)
    changed = (second - first).abs().amax((1, 2)) > 1e-4
    assert changed.tolist() == [True, False, True]  # the middle one says the same, in a longer table or not
    made.set_instructions(*hash_instructions([*SAID, "a much longer instruction than the others are"]))
    torch.testing.assert_close(said(made, obs), first, rtol=1e-4, atol=1e-5)
    with pytest.raises(ConfigError, match="have 9 tokens of 128 features; this policy reads up to 8 tokens of 128"):
        made.set_instructions(*hash_instructions(["one two three four five six seven eight nine"]))
    with pytest.raises(ConfigError, match="2 tokens of 5 features"):
        made.set_instructions(torch.zeros(1, 2, 5), torch.ones(1, 2, dtype=torch.bool))


def test_what_is_hidden_is_not_seen() -> None:
    made, obs = policy(), seen()
    all_rows = torch.ones(3, dtype=torch.bool)
    torch.testing.assert_close(said(made, obs, hidden=hiding()), said(made, obs))
    others = {
        "state": {"state": obs["state"] + 5.0},
        "hz": {"hz": torch.zeros(3)},
        "language": {"task": (obs["task"] + 1) % len(SAID)},
    }
    for name, other in others.items():
        hidden = hiding(**{name: all_rows})
        first = said(made, obs, hidden=hidden)
        assert torch.equal(first, said(made, obs | other, hidden=hidden)), name
        assert not torch.allclose(first, said(made, obs), atol=1e-5), name
    gone = torch.zeros(3, 2, 2, dtype=torch.bool)
    gone[1, 0] = True
    torch.testing.assert_close(said(made, obs, hidden=hiding(images=gone)), said(made, obs | {"image_mask": ~gone}))
    noise = torch.randn(3, V)
    moved = obs | {"state": obs["state"] + noise * STATISTICS["state_std"]}
    torch.testing.assert_close(said(made, obs, hidden=hiding(state_noise=noise)), said(made, moved))


def test_pictures_of_other_sizes_and_bad_statistics_are_refused() -> None:
    made, obs = policy(), seen(cameras=4)
    with pytest.raises(ValueError, match="2 frames of 4 cameras with 4 patches; this policy observes 2 frames"):
        said(made, obs)
    with pytest.raises(ValueError, match=r"state_std must be above 0, but .* \[3\]"):
        made.set_statistics(**STATISTICS | {"state_std": torch.ones(V) - (torch.arange(V) == 3).float()})
    with pytest.raises(ValueError, match="have no action_mean"):
        made.set_statistics(state_mean=torch.zeros(V), state_std=torch.ones(V))


def test_jitter_of_nothing_changes_nothing_and_of_one_picture_only_it() -> None:
    pictures = torch.randint(256, (4, 48, 24, 3), dtype=torch.uint8)
    draws = torch.zeros(4, NUM_JITTER_PARAMS)
    assert torch.equal(jitter_images(pictures, draws), pictures)
    draws[2] = torch.tensor([0.5, -0.5, 0.5, 1.0, -1.0])
    changed = jitter_images(pictures, draws)
    assert [torch.equal(a, b) for a, b in zip(changed, pictures, strict=True)] == [True, True, False, True]


def test_jitter_moves_and_lights_as_it_says() -> None:
    pictures = torch.randint(100, (1, 48, 24, 3), dtype=torch.uint8)
    down, right = round(MAX_SHIFT * 48), round(MAX_SHIFT * 24)
    assert (down, right) == (2, 1)
    moved = jitter_images(pictures, torch.tensor([[0.0, 0.0, 0.0, 1.0, -1.0]]))
    assert torch.equal(moved[0, :-down, right:], pictures[0, down:, :-right])
    assert torch.equal(moved[0, -1, right:], pictures[0, -1, :-right])  # the edge stands for what is outside
    brighter = jitter_images(pictures, torch.tensor([[1.0, 0.0, 0.0, 0.0, 0.0]]))
    assert torch.equal(brighter, ((1 + MAX_COLOUR_CHANGE[0]) * pictures.float()).round().to(torch.uint8))
    level = jitter_images(pictures, torch.tensor([[0.0, 1.0, 0.0, 0.0, 0.0]])).float()
    assert level.std() > 1.2 * pictures.float().std()
    grey = jitter_images(pictures, torch.tensor([[0.0, 0.0, -1 / MAX_COLOUR_CHANGE[2], 0.0, 0.0]])).float()
    assert (grey - grey.mean(-1, keepdim=True)).abs().max() < 1.01  # no colour is left
    assert jitter_images(torch.full_like(pictures, 250), torch.ones(1, NUM_JITTER_PARAMS)).max() == 255


@pytest.mark.parametrize("subsample", [1, 2])
def test_small_vision_has_a_token_for_each_patch_and_knows_where(subsample: int) -> None:
    torch.manual_seed(0)
    vision = PatchEncoder(64, subsample)
    pictures = torch.randint(256, (2, 64, 96, 3), dtype=torch.uint8)
    tokens = vision(pictures)
    assert tokens.shape == (2, 24, 64) and vision.patches(64, 96) == 24
    plain = vision(torch.full((1, 64, 96, 3), 90, dtype=torch.uint8))[0]
    assert torch.pdist(plain).min() > 0  # of one colour, and yet no two patches say the same
    one = pictures[:1].clone()
    one[0, 34:40, 66:72] = 255 - one[0, 34:40, 66:72]
    moved = (vision(one)[0] - tokens[0]).norm(dim=1)
    assert int(moved.argmax()) == 2 * 6 + 4  # row by row
    with torch.autocast("cpu", torch.bfloat16):
        half = vision(pictures)
    assert (half.float() - tokens).norm() < 0.1 * tokens.norm()
    with pytest.raises(ValueError, match="40 x 64 pixels .* the sides must be multiples of 16"):
        vision(torch.zeros(1, 40, 64, 3, dtype=torch.uint8))
    with pytest.raises(ValueError, match="width=100"):
        PatchEncoder(100)


def test_words_tell_instructions_apart() -> None:
    tasks = [f"{verb} the {thing}" for verb in ("open", "close", "push", "pick up") for thing in ("pot", "lid", "box")]
    tasks += ["put the bowl on the plate", "put the plate on the bowl"]
    tokens, there = hash_instructions(tasks)
    assert tokens.shape == (14, 6, WIDTH) and there.sum(1).tolist() == [3] * 9 + [4] * 3 + [6, 6]
    assert not tokens[~there].any()
    alike = instruction_similarity(tokens, there)
    assert torch.allclose(alike.diagonal(), torch.ones(14), atol=1e-6)
    apart = alike - torch.eye(14)
    assert apart[:12, :12].max() < 0.9 and apart.max() < 0.96  # the last two have the same words in another order
    twice = instruction_similarity(*hash_instructions(["Open the drawer.", "open  the DRAWER", "open the door"]))
    assert twice[0, 1] > 0.9999 and twice[0, 2] < 0.9
    alone, _ = hash_instructions(["open the lid"])
    assert torch.equal(alone[0], tokens[tasks.index("open the lid"), :3])  # whatever stands beside it
    assert abs(float(alone[0, 0].square().mean()) - 1) < 0.5
    for empty in ([""], ["..."], []):
        with pytest.raises(ConfigError):
            hash_instructions(empty)
