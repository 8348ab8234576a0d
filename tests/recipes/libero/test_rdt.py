"""The RDT learner: masks in its loss, gradient accumulation, resumes, sampling and learning."""

from __future__ import annotations

import shutil

import pytest
import torch
from torch import Tensor

from powerband.core.errors import ConfigError
from powerband.core.noise import NoiseSource
from powerband.core.optim.precision import Precision
from powerband.core.rank_context import RankContext
from powerband.core.ranks.ranks import Ranks
from powerband.data.types import Tree, tree_map
from powerband.recipes.libero.nets.hashed_tokens import WIDTH, hash_instructions
from powerband.recipes.libero.nets.rdt import RDTShape, RDTSize
from powerband.recipes.libero.nets.rdt_policy import Conditioning, RDTPolicy
from powerband.recipes.libero.nets.small_vision import PatchEncoder
from powerband.recipes.libero.rdt import RDTConfig, RDTLearner

pytest.importorskip("diffusers")
pytest.importorskip("accelerate")
V, T, PIXELS = 8, 6, 32
INSTRUCTIONS = ("go up slowly", "go down at once")
SHAPE = RDTShape(
    horizon=T, vector=V, language_tokens=8, frames=2, cameras=2, patches=4, language_width=WIDTH, patch_width=64
)
OPTIONS = {"horizon": T, "exec_horizon": 3, "lr": 2e-3, "lr_warmup_updates": 0}
ENTRY_MASK = torch.tensor([True] * 5 + [False] * 3)


def make_learner(ranks: Ranks | None = None, precision: str = "fp32", double: bool = False, **options) -> RDTLearner:
    torch.manual_seed(0)
    entries = range(3) if options.get("keyframe_coef") else ()
    policy = RDTPolicy(RDTSize(32, 4, 4), SHAPE, PatchEncoder(64), keyframe_entries=entries)
    policy.set_statistics(
        state_mean=torch.linspace(-1, 1, V),
        state_std=torch.linspace(0.5, 2, V),
        action_mean=torch.linspace(1, -1, V),
        action_std=torch.linspace(0.1, 3, V),
        state_mask=ENTRY_MASK,
        action_mask=ENTRY_MASK,
    )
    policy.set_instructions(*hash_instructions(INSTRUCTIONS))
    if double:
        policy.double()
        policy.set_instructions(*hash_instructions(INSTRUCTIONS))
    ranks = ranks or Ranks()
    return RDTLearner(
        RDTConfig(**(OPTIONS | options)),
        policy,
        RankContext(ranks, Precision(precision), NoiseSource(0, "cpu", ranks.rank)),
    )


def random_observation(rows: int, seed: int = 0, images: bool = True) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    obs = {
        "state": torch.randn(rows, V, generator=generator),
        "state_mask": ENTRY_MASK.repeat(rows, 1),
        "task": torch.randint(2, (rows,), generator=generator),
        "hz": torch.full((rows,), 20.0),
    }
    if images:
        obs["images"] = torch.randint(256, (rows, 2, 2, PIXELS, PIXELS, 3), dtype=torch.uint8, generator=generator)
        obs["image_mask"] = torch.rand(rows, 2, 2, generator=generator) < 0.8
    return obs


def random_batch(number: int, rows: int = 12, images: bool = True) -> dict[str, Tree]:
    """Returns random chunks that differ in their valid steps and in the entries of their actions."""
    generator = torch.Generator().manual_seed(number)
    return {
        "obs": random_observation(rows, number, images),
        "action": torch.randn(rows, T, V, generator=generator),
        "action_mask": torch.rand(rows, V, generator=generator) < 0.6,
        "valid": torch.arange(T) < torch.randint(1, T + 1, (rows, 1), generator=generator),
    }


def test_the_first_loss_is_the_mean_over_valid_entries() -> None:
    """A new network predicts 0, so its loss is the mean of the squared targets."""
    learner, batch = make_learner(), random_batch(0)
    squares = []
    for row in range(12):
        for step in range(T):
            for entry in range(V):
                if batch["valid"][row, step] and batch["action_mask"][row, entry]:
                    mean, std = learner.policy.action_mean[entry], learner.policy.action_std[entry]
                    squares.append(float((batch["action"][row, step, entry] - mean) / std) ** 2)
    loss = float(learner.update(batch)["losses/rdt"])
    assert loss == pytest.approx(sum(squares) / len(squares), rel=1e-5)


def test_masked_steps_and_entries_have_no_influence() -> None:
    one, other, third = make_learner(), make_learner(), make_learner()
    for number in range(3):
        batch = random_batch(number)
        valid = batch["action_mask"].unsqueeze(1) & batch["valid"].unsqueeze(2)
        changed = batch | {"action": torch.where(valid, batch["action"], 1e3)}
        first, second = one.update(batch), other.update(changed)
        assert torch.equal(first["losses/rdt"], second["losses/rdt"])
        third.update(batch | {"action": batch["action"] + 0.1 * (torch.arange(T) == 0).view(1, T, 1)})
    pairs = list(zip(one.policy.parameters(), other.policy.parameters(), third.policy.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b, _ in pairs) and not all(torch.equal(a, c) for a, _, c in pairs)


def test_entries_without_action_have_no_gradient() -> None:
    learner = make_learner(weight_decay=0.0)
    head = learner.policy.model.final_layer.ffn_final.fc2
    torch.nn.init.normal_(head.weight)
    before = head.weight.detach().clone()
    for number in range(2):
        batch = random_batch(number)
        learner.update(batch | {"action_mask": batch["action_mask"] & ENTRY_MASK})
    unchanged = (head.weight == before).all(1)
    assert unchanged.tolist() == (~ENTRY_MASK).tolist()


@pytest.mark.parametrize(("parts", "rows"), [(4, 12), (4, 10), (8, 3)])
def test_gradient_accumulation_takes_the_same_step_as_the_whole_batch(parts: int, rows: int) -> None:
    one, other = make_learner(double=True), make_learner(double=True, gradient_accumulation_steps=parts)
    for number in range(3):
        first, second = (learner.update(random_batch(number, rows)) for learner in (one, other))
        for name in first:
            torch.testing.assert_close(first[name], second[name], rtol=1e-9, atol=1e-12)
    for a, b in zip(one.policy.parameters(), other.policy.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-7)
    assert [float(learner.adam.state_dict()["0"]["step"]) for learner in (one, other)] == [3, 3]


@pytest.mark.parametrize("objective", ["diffusion", "regression"])
def test_a_restored_learner_continues_bit_for_bit(objective: str) -> None:
    learner = make_learner(gradient_accumulation_steps=2, objective=objective)
    for number in range(3):
        learner.update(random_batch(number))
    state = tree_map(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, learner.state_dict())
    restored = make_learner(gradient_accumulation_steps=2, objective=objective)
    restored.load_state_dict(state)
    for number in range(3, 6):
        first, second = learner.update(random_batch(number)), restored.update(random_batch(number))
        assert all(torch.equal(first[name], second[name]) for name in first)
    for name, value in learner.policy_state().items():
        assert torch.equal(value, restored.policy_state()[name]), name
    obs = random_observation(4)
    assert torch.equal(learner.act(obs, None, False)[0], restored.act(obs, None, False)[0])


def test_sampling_returns_the_chunk_that_the_network_predicts(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = make_learner()
    raw = torch.where(ENTRY_MASK, torch.randn(5, T, V), 0.0)
    normalized = learner.policy.normalize("action", raw, ENTRY_MASK)
    monkeypatch.setattr(learner.acting, "denoise", lambda conditioning, noisy, mask, step: normalized)
    chunk, extras, carry = learner.act(random_observation(5), learner.initial_carry(5), explore=False)
    torch.testing.assert_close(chunk, raw, rtol=0, atol=0.05)
    assert extras["action_mask"].tolist() == [ENTRY_MASK.tolist()] * 5 and extras["valid"].all() and carry is None
    monkeypatch.setattr(learner.acting, "denoise", lambda conditioning, noisy, mask, step: torch.zeros_like(normalized))
    mean = torch.where(ENTRY_MASK, learner.policy.action_mean, 0.0).expand(5, T, V)
    torch.testing.assert_close(learner.act(random_observation(5), None, False)[0], mean, rtol=0, atol=0.05)


def instruction_batch(number: int, rows: int = 32) -> dict[str, Tree]:
    """Returns chunks that start near the state and rise with one instruction, and fall with the other."""
    obs = random_observation(rows, number, images=False)
    obs["task"] = torch.arange(rows) % 2
    slope = torch.where(obs["task"] == 0, 1.0, -1.0).view(-1, 1, 1)
    action = 0.2 * obs["state"].unsqueeze(1) + slope * torch.linspace(0, 1, T).view(1, T, 1)
    return {
        "obs": obs,
        "action": action,
        "action_mask": ENTRY_MASK.repeat(rows, 1),
        "valid": torch.ones(rows, T, dtype=torch.bool),
    }


@pytest.mark.parametrize("objective", ["diffusion", "regression"])
def test_the_policy_learns_a_chunk_for_each_of_two_instructions(objective: str) -> None:
    learner, held_out = make_learner(ema_power=0.6, objective=objective), instruction_batch(10_000)
    for policy in (learner.policy, learner.acting):
        policy.action_mean.zero_()
        policy.action_std.fill_(float(held_out["action"].std()))

    def error(obs: dict[str, Tensor]) -> float:
        """Returns the mean absolute error of the actions, divided by their standard deviation."""
        chunk = learner.act(obs, None, False)[0]
        return float(
            ((chunk - held_out["action"])[..., ENTRY_MASK] / held_out["action"][..., ENTRY_MASK].std()).abs().mean()
        )

    before = error(held_out["obs"])
    for number in range(120):
        learner.update(instruction_batch(number))
    matching, swapped = error(held_out["obs"]), error(held_out["obs"] | {"task": 1 - held_out["obs"]["task"]})
    assert matching < 0.35 and before > 2 * matching and swapped > 4 * matching, (before, matching, swapped)
    # In reverse order, the other index has the same instruction.
    learner.set_instructions(*hash_instructions(INSTRUCTIONS[::-1]))
    assert error(held_out["obs"] | {"task": 1 - held_out["obs"]["task"]}) == pytest.approx(matching, rel=0.5)


def test_regression_predicts_the_same_chunk_again_in_one_call_of_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    learner, steps = make_learner(objective="regression"), []
    denoise = learner.acting.denoise

    def recording_denoise(conditioning: Conditioning, noisy: Tensor, mask: Tensor, step: Tensor) -> Tensor:
        steps.append(step.tolist())
        assert not noisy.any()
        return denoise(conditioning, noisy, mask, step)

    monkeypatch.setattr(learner.acting, "denoise", recording_denoise)
    first, second = learner.act(random_observation(5), None, True)[0], learner.act(random_observation(5), None, True)[0]
    assert torch.equal(first, second) and first[..., ENTRY_MASK].std() > 0
    assert steps == [[0] * 5] * 2


def test_regression_learns_the_mean_of_contradicting_chunks() -> None:
    """For one observation, actions are 1 or -1. Regression predicts the mean, 0, and diffusion samples one of both."""
    magnitude = {}
    for objective in ("diffusion", "regression"):
        learner = make_learner(objective=objective, ema_power=0.6)
        for policy in (learner.policy, learner.acting):
            policy.action_mean.zero_()
            policy.action_std.fill_(1.0)
        batch = instruction_batch(0)
        batch["obs"] = {name: leaf[:1].expand(32, *leaf.shape[1:]) for name, leaf in batch["obs"].items()}
        batch["action"] = torch.where(torch.arange(32) % 2 == 0, 1.0, -1.0).view(-1, 1, 1).expand(32, T, V)
        for _ in range(150):
            learner.update(batch)
        chunk = learner.act(batch["obs"], None, False)[0][..., ENTRY_MASK]
        magnitude[objective] = float(chunk.abs().mean())
    assert magnitude["regression"] < 0.2 and magnitude["diffusion"] > 0.6, magnitude


def test_training_updates_the_image_encoder() -> None:
    learner = make_learner()
    before = [parameter.clone() for parameter in learner.policy.vision.parameters()]
    for number in range(3):
        metrics = learner.update(random_batch(number))
    assert all(not torch.equal(a, b) for a, b in zip(before, learner.policy.vision.parameters(), strict=True))
    assert all(bool(value.isfinite()) and value.dim() == 0 and not value.requires_grad for value in metrics.values())


def test_averaged_weights_act_and_share_the_instructions() -> None:
    learner = make_learner()
    assert learner.acting.language_tokens is learner.policy.language_tokens
    learner.update(random_batch(0))
    first = {name: value.clone() for name, value in learner.policy.state_dict().items()}
    # The decay of the first update, 1 - 1 ** -0.75, is 0.
    assert all(torch.equal(value, first[name]) for name, value in learner.policy_state().items())
    learner.update(random_batch(1))
    decay = 1 - 2**-0.75
    for name, value in learner.policy.named_parameters():
        expected = decay * first[name] + (1 - decay) * value
        torch.testing.assert_close(learner.policy_state()[name], expected.detach(), rtol=0, atol=1e-6)
    assert torch.equal(learner.policy_state()["action_std"], learner.policy.action_std)
    assert not any(parameter.requires_grad for parameter in learner.acting.parameters())


def test_the_learning_rate_rises_in_the_warm_up() -> None:
    learner = make_learner(lr=1e-3, lr_warmup_updates=4)
    rates = []
    for number in range(6):
        learner.update(random_batch(number))
        rates.append(learner.adam.lr)
    assert rates == pytest.approx([2.5e-4, 5e-4, 7.5e-4, 1e-3, 1e-3, 1e-3])


def test_conditions_are_masked_and_perturbed_at_the_configured_rates() -> None:
    learner = make_learner(drop_condition=0.25, augment=0.5, state_snr_db=20.0)
    hidden = learner._hidden(random_observation(4_000))
    for name in ("state", "language", "hz", "images"):
        assert hidden[name].float().mean() == pytest.approx(0.25, abs=0.03), name
    both = (hidden["state"] & hidden["language"]).float().mean()
    assert both == pytest.approx(0.25**2, abs=0.02)  # the masks are independent
    assert hidden["state_noise"].std() == pytest.approx(0.1, rel=0.05)
    jittered = hidden["jitter"].abs().sum(-1) > 0
    assert jittered.float().mean() == pytest.approx(0.5, abs=0.03) and hidden["jitter"].shape == (4_000, 2, 5)
    assert hidden["jitter"].abs().max() <= 1 and hidden["jitter"].mean() == pytest.approx(0, abs=0.02)
    other = learner._hidden(random_observation(4_000))
    assert not torch.equal(other["state"], hidden["state"])
    assert "jitter" not in make_learner(augment=0.0)._hidden(random_observation(4))


def test_gradient_checkpointing_changes_no_update() -> None:
    one, other = make_learner(), make_learner(gradient_checkpointing=True)
    assert other.policy.model.gradient_checkpointing and not one.policy.model.gradient_checkpointing
    for number in range(2):
        first, second = one.update(random_batch(number)), other.update(random_batch(number))
        torch.testing.assert_close(first["losses/grad_norm"], second["losses/grad_norm"])


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("c++") is None, reason="torch.compile needs a C++ compiler on a CPU")
def test_compiled_updates_equal_eager_updates() -> None:
    one, other = make_learner(), make_learner(compile=True)
    for number in range(3):
        first, second = one.update(random_batch(number)), other.update(random_batch(number))
        for name in first:
            torch.testing.assert_close(first[name], second[name], rtol=1e-3, atol=1e-5)
    assert one.policy_state().keys() == other.policy_state().keys()


def test_a_bf16_learner_does_not_affect_later_fp32_learners() -> None:
    losses = []
    for name in ("fp32", "bf16", "fp32"):
        learner = make_learner(precision=name)
        learner.update(random_batch(0))
        losses.append(float(learner.update(random_batch(1))["losses/rdt"]))
        assert learner.act(random_observation(3), None, False)[0].isfinite().all()
    assert losses[0] == losses[2] and losses[1] == pytest.approx(losses[0], rel=0.05)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"exec_horizon": 65}, "rdt.exec_horizon=65 is more than .* Write rdt.exec_horizon=64 or less"),
        ({"gradient_accumulation_steps": 0}, "0 is below 1"),
        ({"sample_steps": 1001}, "rdt.sample_steps=1001 is more than .* Write rdt.sample_steps=1000 or less"),
        ({"ema_max": 1.0}, "ema_max=1"),
        ({"drop_condition": 1.5}, "1.5 is above 1"),
    ],
)
def test_bad_settings_are_refused(settings: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RDTConfig(**settings)


def test_a_policy_with_another_horizon_is_refused() -> None:
    with pytest.raises(ConfigError, match="rdt.horizon=64 does not match this policy, whose chunks have 6 actions"):
        make_learner(horizon=64, exec_horizon=16)


def fully_valid_batch(rows: int = 4) -> dict:
    """Returns the same random batch at each call; all steps of its chunks are valid."""
    obs = random_observation(rows)
    return {
        "obs": obs,
        "action": torch.randn(rows, T, V, generator=torch.Generator().manual_seed(3)),
        "action_mask": ENTRY_MASK.expand(rows, -1),
        "valid": torch.ones(rows, T, dtype=torch.bool),
    }


def test_frozen_weights_do_not_change_and_others_learn() -> None:
    learner = make_learner(freeze=("vision.*", "model.blocks.0.*"))
    before = {name: weight.detach().clone() for name, weight in learner.policy.named_parameters()}
    for _ in range(2):  # the output head is zero at first, so the first update changes nothing below it
        learner.update(fully_valid_batch())
    frozen = {name for name, weight in learner.policy.named_parameters() if torch.equal(weight, before[name])}
    assert {name for name in before if name.startswith(("vision.", "model.blocks.0."))} <= frozen
    assert not [name for name in frozen if name.startswith(("model.blocks.1", "state_adaptor", "lang_adaptor"))]
    for patterns, message in ((("vison.*",), "matches no weight.*vision"), (("*",), "leaves no weight to train")):
        with pytest.raises(ConfigError, match=message):
            make_learner(freeze=patterns)


def test_the_factored_optimiser_learns_with_a_small_state() -> None:
    default, factored = make_learner(), make_learner(optimizer="factored")
    losses = [float(factored.update(fully_valid_batch())["losses/rdt"]) for _ in range(12)]
    default.update(fully_valid_batch())
    assert losses[-1] < 0.8 * losses[0]
    sizes = [
        sum(value.numel() for state in learner.state_dict()["adam"].values() for value in state.values())
        for learner in (default, factored)
    ]
    assert sizes[1] < 0.25 * sizes[0]


def test_noise_on_states_is_relative_to_their_spread() -> None:
    learner = make_learner(state_snr_db=0.0, drop_condition=0.0)
    plain = learner._hidden(random_observation(4))["state_noise"]
    learner = make_learner(state_snr_db=0.0, drop_condition=0.0)
    learner.state_spread = torch.full((V,), 0.25)
    assert torch.equal(learner._hidden(random_observation(4))["state_noise"], plain / 4)


def keyframe_batch(number: int, rows: int = 32) -> dict[str, Tree]:
    """Returns demonstrations whose keyframe is below the hand by twice the brightness of the images."""
    batch = random_batch(number, rows)
    brightness = torch.rand(rows, generator=torch.Generator().manual_seed(number))
    images = (255 * brightness).to(torch.uint8).view(-1, 1, 1, 1, 1, 1).expand(batch["obs"]["images"].shape)
    obs = batch["obs"] | {"images": images, "image_mask": torch.ones(rows, 2, 2, dtype=torch.bool)}
    keyframe = obs["state"][:, :3] - brightness.unsqueeze(1) * torch.tensor([0.0, 0.0, 2.0])
    return batch | {"obs": obs, "keyframe": keyframe}


def test_keyframes_are_predicted_from_images() -> None:
    learner = make_learner(keyframe_coef=1.0, drop_condition=0.0, augment=0.0, state_snr_db=60.0, ema_max=0.9)

    def error() -> float:
        """Returns the RMS error of the predicted keyframe along z, divided by the standard deviation of the target."""
        batch = keyframe_batch(10_000, 64)
        target = learner.policy.keyframe_target(batch["keyframe"])
        difference = learner.acting.condition(batch["obs"]).keyframe_R3 - target
        return float(difference[:, 2].square().mean().sqrt() / target[:, 2].std())

    before = error()
    metrics = [learner.update(keyframe_batch(number)) for number in range(150)]
    assert error() < 0.25 < 0.5 < before, (before, error())
    assert metrics[-1]["losses/keyframe"] < 0.1 * metrics[0]["losses/keyframe"]


def test_the_loss_of_chunks_does_not_train_the_keyframe_head_and_the_policy_observes_its_output() -> None:
    learner = make_learner(keyframe_coef=1e-30, lr=1e-2, weight_decay=0.0)
    torch.nn.init.normal_(learner.policy.model.final_layer.ffn_final.fc2.weight)
    batch = keyframe_batch(0)
    chunk, _ = learner.policy(
        batch["obs"], torch.zeros(32, T, V), batch["action_mask"], torch.zeros(32, dtype=torch.long)
    )
    chunk.square().mean().backward()
    assert all(weight.grad is None for weight in learner.policy.keyframe.parameters())
    assert all(bool(weight.grad.abs().sum() > 0) for weight in learner.policy.keyframe_adaptor.parameters())


def test_gradient_accumulation_and_resumes_do_not_change_the_keyframe_loss() -> None:
    one, other = (make_learner(double=True, keyframe_coef=0.5, gradient_accumulation_steps=parts) for parts in (1, 4))
    for number in range(2):
        first, second = one.update(keyframe_batch(number, 10)), other.update(keyframe_batch(number, 10))
        for name in first:
            torch.testing.assert_close(first[name], second[name], rtol=1e-9, atol=1e-12)
    restored = make_learner(double=True, keyframe_coef=0.5)
    restored.load_state_dict(
        tree_map(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, one.state_dict())
    )
    first, second = one.update(keyframe_batch(5)), restored.update(keyframe_batch(5))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_without_images_the_keyframe_is_predicted_from_state_and_instruction() -> None:
    torch.manual_seed(0)
    policy = RDTPolicy(RDTSize(32, 2, 4), SHAPE, None, keyframe_entries=range(3))
    policy.set_instructions(*hash_instructions(INSTRUCTIONS))
    assert policy.condition(random_observation(4, images=False)).keyframe_R3.shape == (4, 3)
