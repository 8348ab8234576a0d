"""RDTPolicy: exact normalisation, masks, instructions, images, image jitter, and the trained and hashed encoders."""

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
INSTRUCTIONS = ("open the top drawer", "close the top drawer", "stop it")
ENTRY_MASK = torch.tensor([True] * 8 + [False] * 4)
STATISTICS = {
    "state_mean": torch.linspace(-3, 3, V),
    "state_std": torch.linspace(0.1, 2, V),
    "action_mean": torch.linspace(1, -1, V),
    "action_std": torch.linspace(0.5, 5, V),
    "state_mask": ENTRY_MASK,
    "action_mask": ENTRY_MASK,
}


def make_policy() -> RDTPolicy:
    torch.manual_seed(0)
    policy = RDTPolicy(RDTSize(32, 4, 4), SHAPE, PatchEncoder(64))
    nn.init.normal_(policy.model.final_layer.ffn_final.fc2.weight)
    # These weights are constant at initialisation, and training changes them.
    for weight in (policy.background, policy.model.lang_cond_pos_embed):
        nn.init.normal_(weight)
    policy.set_statistics(**STATISTICS)
    policy.set_instructions(*hash_instructions(INSTRUCTIONS))
    return policy.eval()


def random_observation(rows: int = 3, cameras: int = 2) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {
        "images": torch.randint(256, (rows, 2, cameras, PIXELS, PIXELS, 3), dtype=torch.uint8, generator=generator),
        "image_mask": torch.ones(rows, 2, cameras, dtype=torch.bool),
        "state": torch.randn(rows, V, generator=generator),
        "state_mask": ENTRY_MASK.repeat(rows, 1),
        "task": torch.arange(rows) % len(INSTRUCTIONS),
        "hz": torch.full((rows,), 20.0),
    }


@torch.no_grad()
def predict(policy: RDTPolicy, obs: dict[str, Tensor], noisy: Tensor | None = None, **inputs) -> Tensor:
    rows = len(obs["state"])
    if noisy is None:
        noisy = torch.randn(rows, T, V, generator=torch.Generator().manual_seed(2))
    return policy(obs, noisy, ENTRY_MASK.repeat(rows, 1), torch.full((rows,), 300), **inputs)[0]


def make_hidden(rows: int = 3, cameras: int = 2, **fields: Tensor) -> dict[str, Tensor]:
    """Returns the argument `hidden` of a policy: only `fields` mask or change anything."""
    hidden = {name: torch.zeros(rows, dtype=torch.bool) for name in ("state", "language", "hz")}
    hidden["images"] = torch.zeros(rows, 2, cameras, dtype=torch.bool)
    return hidden | {"state_noise": torch.zeros(rows, V)} | fields


def test_normalisation_is_exact_and_the_state_dict_contains_the_statistics() -> None:
    policy = make_policy()
    raw = torch.randn(5, T, V)
    normalized = policy.normalize("action", raw, ENTRY_MASK)
    expected = (raw - STATISTICS["action_mean"]) / STATISTICS["action_std"]
    assert torch.equal(normalized, torch.where(ENTRY_MASK, expected, 0.0))
    denormalized = policy.denormalize_actions(normalized, ENTRY_MASK)
    torch.testing.assert_close(denormalized[..., :8], raw[..., :8])
    assert not denormalized[..., 8:].any()
    other = RDTPolicy(RDTSize(32, 4, 4), SHAPE, PatchEncoder(64))
    other.load_state_dict(policy.state_dict())
    other.set_instructions(*hash_instructions(INSTRUCTIONS))
    assert torch.equal(predict(policy, random_observation()), predict(other, random_observation()))
    other.set_statistics(**STATISTICS | {"state_mean": STATISTICS["state_mean"] + 1})
    shifted = random_observation() | {"state": random_observation()["state"] + 1}
    torch.testing.assert_close(predict(other, shifted), predict(policy, random_observation()))
    assert not torch.allclose(predict(other, random_observation()), predict(policy, random_observation()))


def test_masked_entries_have_no_influence() -> None:
    policy, obs = make_policy(), random_observation()
    noisy = torch.randn(3, T, V)
    changed_obs, changed_noisy = dict(obs), noisy.clone()
    changed_obs["state"] = torch.where(ENTRY_MASK, obs["state"], float("nan"))
    changed_noisy[..., 8:] = 50.0
    assert torch.equal(predict(policy, obs, noisy), predict(policy, changed_obs, changed_noisy))
    changed_noisy[..., 7] += 1.0
    assert not torch.allclose(predict(policy, obs, noisy), predict(policy, changed_obs, changed_noisy))
    masked = {**obs, "state_mask": obs["state_mask"] & (torch.arange(V) > 0)}
    mean = {**obs, "state": torch.where(torch.arange(V) > 0, obs["state"], STATISTICS["state_mean"])}
    assert not torch.allclose(predict(policy, masked), predict(policy, mean))  # the policy also observes the mask


def test_missing_images_have_no_influence() -> None:
    policy, obs = make_policy(), random_observation()
    obs["image_mask"][0, 0, 1] = obs["image_mask"][1] = False  # one image of row 0, and all images of row 1
    other = {**obs, "images": obs["images"].clone()}
    other["images"][~obs["image_mask"]] = 255
    first = predict(policy, obs)
    assert torch.equal(first, predict(policy, other)) and first.isfinite().all()
    other["images"][0, 0, 0] = 255
    changed = (predict(policy, other) - first).abs().amax((1, 2)) > 1e-6
    assert changed.tolist() == [True, False, False]
    complete = predict(policy, random_observation())
    assert not torch.allclose(first[0], complete[0]) and torch.allclose(first[2], complete[2], atol=1e-5)


def test_frames_and_cameras_are_distinguished() -> None:
    policy, obs = make_policy(), random_observation()
    for axis in (1, 2):
        flipped = {**obs, "images": obs["images"].flip(axis)}
        assert not torch.allclose(predict(policy, flipped), predict(policy, obs), atol=1e-4)
    one_camera = {**obs, "images": obs["images"][:, :, :1], "image_mask": obs["image_mask"][:, :, :1]}
    masked = {**obs, "image_mask": obs["image_mask"] & (torch.arange(2) == 0)}
    torch.testing.assert_close(predict(policy, one_camera), predict(policy, masked), rtol=1e-4, atol=1e-5)


def test_encoded_features_replace_images() -> None:
    policy, obs = make_policy(), random_observation()
    with torch.no_grad():
        features = policy.vision(obs["images"].flatten(0, 2)).unflatten(0, (3, 2, 2))
    encoded = {name: value for name, value in obs.items() if name != "images"} | {"features": features}
    torch.testing.assert_close(predict(policy, encoded), predict(policy, obs))
    without_images = {name: value for name, value in obs.items() if not name.startswith("images")}
    assert predict(policy, without_images).isfinite().all() and not torch.allclose(
        predict(policy, without_images), predict(policy, obs), atol=1e-4
    )


def test_the_instruction_changes_the_chunk_and_can_be_replaced() -> None:
    policy, obs = make_policy(), random_observation()
    first = predict(policy, obs)
    policy.set_instructions(*hash_instructions(INSTRUCTIONS[::-1]))
    second = predict(policy, obs)
    changed = (second - first).abs().amax((1, 2)) > 1e-4
    assert changed.tolist() == [True, False, True]  # the middle instruction stays the same
    policy.set_instructions(*hash_instructions([*INSTRUCTIONS, "a much longer instruction than the others are"]))
    torch.testing.assert_close(predict(policy, obs), first, rtol=1e-4, atol=1e-5)
    with pytest.raises(ConfigError, match="have 9 tokens of 128 features; this policy reads up to 8 tokens of 128"):
        policy.set_instructions(*hash_instructions(["one two three four five six seven eight nine"]))
    with pytest.raises(ConfigError, match="2 tokens of 5 features"):
        policy.set_instructions(torch.zeros(1, 2, 5), torch.ones(1, 2, dtype=torch.bool))


def test_hidden_conditions_have_no_influence() -> None:
    policy, obs = make_policy(), random_observation()
    all_rows = torch.ones(3, dtype=torch.bool)
    torch.testing.assert_close(predict(policy, obs, hidden=make_hidden()), predict(policy, obs))
    changes = {
        "state": {"state": obs["state"] + 5.0},
        "hz": {"hz": torch.zeros(3)},
        "language": {"task": (obs["task"] + 1) % len(INSTRUCTIONS)},
    }
    for name, change in changes.items():
        hidden = make_hidden(**{name: all_rows})
        first = predict(policy, obs, hidden=hidden)
        assert torch.equal(first, predict(policy, obs | change, hidden=hidden)), name
        assert not torch.allclose(first, predict(policy, obs), atol=1e-5), name
    hidden_images = torch.zeros(3, 2, 2, dtype=torch.bool)
    hidden_images[1, 0] = True
    torch.testing.assert_close(
        predict(policy, obs, hidden=make_hidden(images=hidden_images)),
        predict(policy, obs | {"image_mask": ~hidden_images}),
    )
    noise = torch.randn(3, V)
    perturbed = obs | {"state": obs["state"] + noise * STATISTICS["state_std"]}
    torch.testing.assert_close(predict(policy, obs, hidden=make_hidden(state_noise=noise)), predict(policy, perturbed))


def test_unsupported_images_and_invalid_statistics_are_refused() -> None:
    policy, obs = make_policy(), random_observation(cameras=4)
    with pytest.raises(ValueError, match="2 frames of 4 cameras with 4 patches; this policy observes 2 frames"):
        predict(policy, obs)
    with pytest.raises(ValueError, match=r"state_std must be above 0, but .* \[3\]"):
        policy.set_statistics(**STATISTICS | {"state_std": torch.ones(V) - (torch.arange(V) == 3).float()})
    with pytest.raises(ValueError, match="have no action_mean"):
        policy.set_statistics(state_mean=torch.zeros(V), state_std=torch.ones(V))


def test_jitter_changes_only_images_with_nonzero_parameters() -> None:
    images = torch.randint(256, (4, 48, 24, 3), dtype=torch.uint8)
    draws = torch.zeros(4, NUM_JITTER_PARAMS)
    assert torch.equal(jitter_images(images, draws), images)
    draws[2] = torch.tensor([0.5, -0.5, 0.5, 1.0, -1.0])
    changed = jitter_images(images, draws)
    assert [torch.equal(a, b) for a, b in zip(changed, images, strict=True)] == [True, True, False, True]


def test_jitter_shifts_images_and_changes_their_colours() -> None:
    images = torch.randint(100, (1, 48, 24, 3), dtype=torch.uint8)
    down, right = round(MAX_SHIFT * 48), round(MAX_SHIFT * 24)
    assert (down, right) == (2, 1)
    shifted = jitter_images(images, torch.tensor([[0.0, 0.0, 0.0, 1.0, -1.0]]))
    assert torch.equal(shifted[0, :-down, right:], images[0, down:, :-right])
    assert torch.equal(shifted[0, -1, right:], images[0, -1, :-right])  # edge pixels fill the gap
    brighter = jitter_images(images, torch.tensor([[1.0, 0.0, 0.0, 0.0, 0.0]]))
    assert torch.equal(brighter, ((1 + MAX_COLOUR_CHANGE[0]) * images.float()).round().to(torch.uint8))
    contrasted = jitter_images(images, torch.tensor([[0.0, 1.0, 0.0, 0.0, 0.0]])).float()
    assert contrasted.std() > 1.2 * images.float().std()
    grey = jitter_images(images, torch.tensor([[0.0, 0.0, -1 / MAX_COLOUR_CHANGE[2], 0.0, 0.0]])).float()
    assert (grey - grey.mean(-1, keepdim=True)).abs().max() < 1.01  # the image is grey
    assert jitter_images(torch.full_like(images, 250), torch.ones(1, NUM_JITTER_PARAMS)).max() == 255


@pytest.mark.parametrize("subsample", [1, 2])
def test_the_patch_encoder_returns_one_token_per_patch_with_its_position(subsample: int) -> None:
    torch.manual_seed(0)
    vision = PatchEncoder(64, subsample)
    images = torch.randint(256, (2, 64, 96, 3), dtype=torch.uint8)
    tokens = vision(images)
    assert tokens.shape == (2, 24, 64) and vision.patches(64, 96) == 24
    uniform = vision(torch.full((1, 64, 96, 3), 90, dtype=torch.uint8))[0]
    assert torch.pdist(uniform).min() > 0  # the colour is the same, but all tokens differ
    changed = images[:1].clone()
    changed[0, 34:40, 66:72] = 255 - changed[0, 34:40, 66:72]
    distance = (vision(changed)[0] - tokens[0]).norm(dim=1)
    assert int(distance.argmax()) == 2 * 6 + 4  # patches are ordered row by row
    with torch.autocast("cpu", torch.bfloat16):
        bf16_tokens = vision(images)
    assert (bf16_tokens.float() - tokens).norm() < 0.1 * tokens.norm()
    with pytest.raises(ValueError, match="40 x 64 pixels .* the sides must be multiples of 16"):
        vision(torch.zeros(1, 40, 64, 3, dtype=torch.uint8))
    with pytest.raises(ValueError, match="width=100"):
        PatchEncoder(100)


def test_hashed_tokens_distinguish_instructions() -> None:
    tasks = [f"{verb} the {thing}" for verb in ("open", "close", "push", "pick up") for thing in ("pot", "lid", "box")]
    tasks += ["put the bowl on the plate", "put the plate on the bowl"]
    tokens, mask = hash_instructions(tasks)
    assert tokens.shape == (14, 6, WIDTH) and mask.sum(1).tolist() == [3] * 9 + [4] * 3 + [6, 6]
    assert not tokens[~mask].any()
    similarity = instruction_similarity(tokens, mask)
    assert torch.allclose(similarity.diagonal(), torch.ones(14), atol=1e-6)
    off_diagonal = similarity - torch.eye(14)
    assert off_diagonal[:12, :12].max() < 0.9 and off_diagonal.max() < 0.96  # the last two differ in word order
    of_three = instruction_similarity(*hash_instructions(["Open the drawer.", "open  the DRAWER", "open the door"]))
    assert of_three[0, 1] > 0.9999 and of_three[0, 2] < 0.9
    single, _ = hash_instructions(["open the lid"])
    assert torch.equal(single[0], tokens[tasks.index("open the lid"), :3])  # other instructions do not matter
    assert abs(float(single[0, 0].square().mean()) - 1) < 0.5
    for empty in ([""], ["..."], []):
        with pytest.raises(ConfigError):
            hash_instructions(empty)
