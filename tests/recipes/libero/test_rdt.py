"""The RDT learner: what counts in its loss, parts of a batch, resumes, sampling, and that it learns."""

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
SAID = ("go up slowly", "go down at once")
SHAPE = RDTShape(
    horizon=T, vector=V, language_tokens=8, frames=2, cameras=2, patches=4, language_width=WIDTH, patch_width=64
)
WORDS = {"horizon": T, "exec_horizon": 3, "lr": 2e-3, "lr_warmup_updates": 0}
THERE = torch.tensor([True] * 5 + [False] * 3)


def learner(ranks: Ranks | None = None, precision: str = "fp32", double: bool = False, **words) -> RDTLearner:
    torch.manual_seed(0)
    entries = range(3) if words.get("keyframe_coef") else ()
    policy = RDTPolicy(RDTSize(32, 4, 4), SHAPE, PatchEncoder(64), keyframe_entries=entries)
    policy.set_statistics(
        state_mean=torch.linspace(-1, 1, V),
        state_std=torch.linspace(0.5, 2, V),
        action_mean=torch.linspace(1, -1, V),
        action_std=torch.linspace(0.1, 3, V),
        state_mask=THERE,
        action_mask=THERE,
    )
    policy.set_instructions(*hash_instructions(SAID))
    if double:
        policy.double()
        policy.set_instructions(*hash_instructions(SAID))
    ranks = ranks or Ranks()
    return RDTLearner(
        RDTConfig(**(WORDS | words)),
        policy,
        RankContext(ranks, Precision(precision), NoiseSource(0, "cpu", ranks.rank)),
    )


def seen(rows: int, seed: int = 0, pictures: bool = True) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    obs = {
        "state": torch.randn(rows, V, generator=draw),
        "state_mask": THERE.repeat(rows, 1),
        "task": torch.randint(2, (rows,), generator=draw),
        "hz": torch.full((rows,), 20.0),
    }
    if pictures:
        obs["images"] = torch.randint(256, (rows, 2, 2, PIXELS, PIXELS, 3), dtype=torch.uint8, generator=draw)
        obs["image_mask"] = torch.rand(rows, 2, 2, generator=draw) < 0.8
    return obs


def demonstrated(number: int, rows: int = 12, pictures: bool = True) -> dict[str, Tree]:
    """Chunks that differ in how many steps and numbers count."""
    draw = torch.Generator().manual_seed(number)
    return {
        "obs": seen(rows, number, pictures),
        "action": torch.randn(rows, T, V, generator=draw),
        "action_mask": torch.rand(rows, V, generator=draw) < 0.6,
        "valid": torch.arange(T) < torch.randint(1, T + 1, (rows, 1), generator=draw),
    }


def test_the_first_loss_is_the_mean_over_what_counts() -> None:
    """A new network says 0, so its loss is the mean of the squares that it should have said."""
    made, batch = learner(), demonstrated(0)
    squares = []
    for row in range(12):
        for step in range(T):
            for number in range(V):
                if batch["valid"][row, step] and batch["action_mask"][row, number]:
                    mean, std = made.policy.action_mean[number], made.policy.action_std[number]
                    squares.append(float((batch["action"][row, step, number] - mean) / std) ** 2)
    loss = float(made.update(batch)["losses/rdt"])
    assert loss == pytest.approx(sum(squares) / len(squares), rel=1e-5)


def test_steps_and_numbers_that_do_not_count_have_no_influence() -> None:
    one, other, third = learner(), learner(), learner()
    for number in range(3):
        batch = demonstrated(number)
        counts = batch["action_mask"].unsqueeze(1) & batch["valid"].unsqueeze(2)
        changed = batch | {"action": torch.where(counts, batch["action"], 1e3)}
        first, second = one.update(batch), other.update(changed)
        assert torch.equal(first["losses/rdt"], second["losses/rdt"])
        third.update(batch | {"action": batch["action"] + 0.1 * (torch.arange(T) == 0).view(1, T, 1)})
    pairs = list(zip(one.policy.parameters(), other.policy.parameters(), third.policy.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b, _ in pairs) and not all(torch.equal(a, c) for a, _, c in pairs)


def test_numbers_that_never_count_are_not_pulled_anywhere() -> None:
    made = learner(weight_decay=0.0)
    head = made.policy.model.final_layer.ffn_final.fc2
    torch.nn.init.normal_(head.weight)
    before = head.weight.detach().clone()
    for number in range(2):
        batch = demonstrated(number)
        made.update(batch | {"action_mask": batch["action_mask"] & THERE})
    still = (head.weight == before).all(1)
    assert still.tolist() == (~THERE).tolist()


@pytest.mark.parametrize(("parts", "rows"), [(4, 12), (4, 10), (8, 3)])
def test_parts_of_a_batch_make_the_same_step_as_the_whole(parts: int, rows: int) -> None:
    one, other = learner(double=True), learner(double=True, gradient_accumulation_steps=parts)
    for number in range(3):
        first, second = (made.update(demonstrated(number, rows)) for made in (one, other))
        for name in first:
            torch.testing.assert_close(first[name], second[name], rtol=1e-9, atol=1e-12)
    for a, b in zip(one.policy.parameters(), other.policy.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-7)
    assert [float(made.adam.state_dict()["0"]["step"]) for made in (one, other)] == [3, 3]


@pytest.mark.parametrize("objective", ["diffusion", "regression"])
def test_going_on_from_a_state_repeats_the_bits(objective: str) -> None:
    one = learner(gradient_accumulation_steps=2, objective=objective)
    for number in range(3):
        one.update(demonstrated(number))
    state = tree_map(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, one.state_dict())
    other = learner(gradient_accumulation_steps=2, objective=objective)
    other.load_state_dict(state)
    for number in range(3, 6):
        first, second = one.update(demonstrated(number)), other.update(demonstrated(number))
        assert all(torch.equal(first[name], second[name]) for name in first)
    for name, value in one.policy_state().items():
        assert torch.equal(value, other.policy_state()[name]), name
    obs = seen(4)
    assert torch.equal(one.act(obs, None, False)[0], other.act(obs, None, False)[0])


def test_a_perfect_network_draws_the_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    made = learner()
    raw = torch.where(THERE, torch.randn(5, T, V), 0.0)
    code = made.policy.normalize("action", raw, THERE)
    monkeypatch.setattr(made.acting, "denoise", lambda seen, noisy, there, step: code)
    chunk, extras, carry = made.act(seen(5), made.initial_carry(5), explore=False)
    torch.testing.assert_close(chunk, raw, rtol=0, atol=0.05)
    assert extras["action_mask"].tolist() == [THERE.tolist()] * 5 and extras["valid"].all() and carry is None
    monkeypatch.setattr(made.acting, "denoise", lambda seen, noisy, there, step: torch.zeros_like(code))
    mean = torch.where(THERE, made.policy.action_mean, 0.0).expand(5, T, V)
    torch.testing.assert_close(made.act(seen(5), None, False)[0], mean, rtol=0, atol=0.05)


def told(number: int, rows: int = 32) -> dict[str, Tree]:
    """One instruction asks for chunks that rise, the other for some that fall, from where the state is."""
    obs = seen(rows, number, pictures=False)
    obs["task"] = torch.arange(rows) % 2
    slope = torch.where(obs["task"] == 0, 1.0, -1.0).view(-1, 1, 1)
    action = 0.2 * obs["state"].unsqueeze(1) + slope * torch.linspace(0, 1, T).view(1, T, 1)
    return {
        "obs": obs,
        "action": action,
        "action_mask": THERE.repeat(rows, 1),
        "valid": torch.ones(rows, T, dtype=torch.bool),
    }


@pytest.mark.parametrize("objective", ["diffusion", "regression"])
def test_two_instructions_are_learned_to_mean_two_chunks(objective: str) -> None:
    made, unseen = learner(ema_power=0.6, objective=objective), told(10_000)
    for policy in (made.policy, made.acting):
        policy.action_mean.zero_()
        policy.action_std.fill_(float(unseen["action"].std()))

    def off(obs: dict[str, Tensor]) -> float:
        """Mean error of actions, as a share of their deviation."""
        chunk = made.act(obs, None, False)[0]
        return float(((chunk - unseen["action"])[..., THERE] / unseen["action"][..., THERE].std()).abs().mean())

    before = off(unseen["obs"])
    for number in range(120):
        made.update(told(number))
    right, swapped = off(unseen["obs"]), off(unseen["obs"] | {"task": 1 - unseen["obs"]["task"]})
    assert right < 0.35 and before > 2 * right and swapped > 4 * right, (before, right, swapped)
    made.set_instructions(*hash_instructions(SAID[::-1]))  # the table turned round: the other row says the same
    assert off(unseen["obs"] | {"task": 1 - unseen["obs"]["task"]}) == pytest.approx(right, rel=0.5)


def test_regression_predicts_the_same_chunk_again_in_one_call_of_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    made, steps = learner(objective="regression"), []
    denoise = made.acting.denoise

    def counted(conditioning: Conditioning, noisy: Tensor, mask: Tensor, step: Tensor) -> Tensor:
        steps.append(step.tolist())
        assert not noisy.any()
        return denoise(conditioning, noisy, mask, step)

    monkeypatch.setattr(made.acting, "denoise", counted)
    first, second = made.act(seen(5), None, True)[0], made.act(seen(5), None, True)[0]
    assert torch.equal(first, second) and first[..., THERE].std() > 0
    assert steps == [[0] * 5] * 2


def test_regression_learns_the_mean_of_contradicting_chunks() -> None:
    """Demonstrations of one observation that move up or down by 1: the mean is 0, and diffusion samples one of both."""
    spread = {}
    for objective in ("diffusion", "regression"):
        made = learner(objective=objective, ema_power=0.6)
        for policy in (made.policy, made.acting):
            policy.action_mean.zero_()
            policy.action_std.fill_(1.0)
        batch = told(0)
        batch["obs"] = {name: leaf[:1].expand(32, *leaf.shape[1:]) for name, leaf in batch["obs"].items()}
        batch["action"] = torch.where(torch.arange(32) % 2 == 0, 1.0, -1.0).view(-1, 1, 1).expand(32, T, V)
        for _ in range(150):
            made.update(batch)
        chunk = made.act(batch["obs"], None, False)[0][..., THERE]
        spread[objective] = float(chunk.abs().mean())
    assert spread["regression"] < 0.2 and spread["diffusion"] > 0.6, spread


def test_pictures_are_learned_from_and_their_encoder_is_trained() -> None:
    made = learner()
    before = [parameter.clone() for parameter in made.policy.vision.parameters()]
    for number in range(3):
        figures = made.update(demonstrated(number))
    assert all(not torch.equal(a, b) for a, b in zip(before, made.policy.vision.parameters(), strict=True))
    assert all(bool(value.isfinite()) and value.dim() == 0 and not value.requires_grad for value in figures.values())


def test_averaged_weights_act_and_share_the_instructions() -> None:
    made = learner()
    assert made.acting.language_tokens is made.policy.language_tokens
    made.update(demonstrated(0))
    first = {name: value.clone() for name, value in made.policy.state_dict().items()}
    assert all(torch.equal(value, first[name]) for name, value in made.policy_state().items())  # 1 - 1 ** -0.75 is 0
    made.update(demonstrated(1))
    keep = 1 - 2**-0.75
    for name, value in made.policy.named_parameters():
        wanted = keep * first[name] + (1 - keep) * value
        torch.testing.assert_close(made.policy_state()[name], wanted.detach(), rtol=0, atol=1e-6)
    assert torch.equal(made.policy_state()["action_std"], made.policy.action_std)
    assert not any(parameter.requires_grad for parameter in made.acting.parameters())


def test_the_learning_rate_rises_in_the_warm_up() -> None:
    made = learner(lr=1e-3, lr_warmup_updates=4)
    rates = []
    for number in range(6):
        made.update(demonstrated(number))
        rates.append(made.adam.lr)
    assert rates == pytest.approx([2.5e-4, 5e-4, 7.5e-4, 1e-3, 1e-3, 1e-3])


def test_what_is_hidden_is_drawn_as_often_as_asked() -> None:
    made = learner(drop_condition=0.25, augment=0.5, state_snr_db=20.0)
    hidden = made._hidden(seen(4_000))
    for name in ("state", "language", "hz", "images"):
        assert hidden[name].float().mean() == pytest.approx(0.25, abs=0.03), name
    together = (hidden["state"] & hidden["language"]).float().mean()
    assert together == pytest.approx(0.25**2, abs=0.02)  # each by itself
    assert hidden["state_noise"].std() == pytest.approx(0.1, rel=0.05)
    moved = hidden["jitter"].abs().sum(-1) > 0
    assert moved.float().mean() == pytest.approx(0.5, abs=0.03) and hidden["jitter"].shape == (4_000, 2, 5)
    assert hidden["jitter"].abs().max() <= 1 and hidden["jitter"].mean() == pytest.approx(0, abs=0.02)
    other = made._hidden(seen(4_000))
    assert not torch.equal(other["state"], hidden["state"])
    assert "jitter" not in learner(augment=0.0)._hidden(seen(4))


def test_checkpoints_of_activations_change_no_step() -> None:
    one, other = learner(), learner(gradient_checkpointing=True)
    assert other.policy.model.gradient_checkpointing and not one.policy.model.gradient_checkpointing
    for number in range(2):
        first, second = one.update(demonstrated(number)), other.update(demonstrated(number))
        torch.testing.assert_close(first["losses/grad_norm"], second["losses/grad_norm"])


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("c++") is None, reason="torch.compile needs a C++ compiler on a CPU")
def test_compiled_steps_are_the_eager_ones() -> None:
    one, other = learner(), learner(compile=True)
    for number in range(3):
        first, second = one.update(demonstrated(number)), other.update(demonstrated(number))
        for name in first:
            torch.testing.assert_close(first[name], second[name], rtol=1e-3, atol=1e-5)
    assert one.policy_state().keys() == other.policy_state().keys()


def test_precisions_follow_one_another_in_one_process() -> None:
    losses = []
    for name in ("fp32", "bf16", "fp32"):
        made = learner(precision=name)
        made.update(demonstrated(0))
        losses.append(float(made.update(demonstrated(1))["losses/rdt"]))
        assert made.act(seen(3), None, False)[0].isfinite().all()
    assert losses[0] == losses[2] and losses[1] == pytest.approx(losses[0], rel=0.05)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"exec_horizon": 65}, "rdt.exec_horizon=65 is more than .* Write rdt.exec_horizon=64 or less"),
        ({"gradient_accumulation_steps": 0}, "0 is below 1"),
        ({"sample_steps": 1001}, "rdt.sample_steps=1001 is more than .* Write rdt.sample_steps=1000 or less"),
        ({"ema_max": 1.0}, "ema_max=1"),
        ({"drop_condition": 1.5}, "1.5 is above 1"),
    ],
)
def test_bad_settings_are_refused(words: dict, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        RDTConfig(**words)


def test_a_policy_of_other_chunks_is_refused() -> None:
    with pytest.raises(ConfigError, match="rdt.horizon=64 does not match this policy, whose chunks have 6 actions"):
        learner(horizon=64, exec_horizon=16)


def batch(rows: int = 4) -> dict:
    obs = seen(rows)
    return {
        "obs": obs,
        "action": torch.randn(rows, T, V, generator=torch.Generator().manual_seed(3)),
        "action_mask": THERE.expand(rows, -1),
        "valid": torch.ones(rows, T, dtype=torch.bool),
    }


def test_frozen_weights_do_not_change_and_others_learn() -> None:
    made = learner(freeze=("vision.*", "model.blocks.0.*"))
    before = {name: weight.detach().clone() for name, weight in made.policy.named_parameters()}
    for _ in range(2):  # the output head is zero at first, so the first update changes nothing below it
        made.update(batch())
    frozen = {name for name, weight in made.policy.named_parameters() if torch.equal(weight, before[name])}
    assert {name for name in before if name.startswith(("vision.", "model.blocks.0."))} <= frozen
    assert not [name for name in frozen if name.startswith(("model.blocks.1", "state_adaptor", "lang_adaptor"))]
    for patterns, message in ((("vison.*",), "matches no weight.*vision"), (("*",), "leaves no weight to train")):
        with pytest.raises(ConfigError, match=message):
            learner(freeze=patterns)


def test_the_factored_optimiser_learns_with_a_small_state() -> None:
    usual, factored = learner(), learner(optimizer="factored")
    losses = [float(factored.update(batch())["losses/rdt"]) for _ in range(12)]
    usual.update(batch())
    assert losses[-1] < 0.8 * losses[0]
    sizes = [
        sum(value.numel() for state in made.state_dict()["adam"].values() for value in state.values())
        for made in (usual, factored)
    ]
    assert sizes[1] < 0.25 * sizes[0]


def test_noise_on_states_is_relative_to_their_spread() -> None:
    made = learner(state_snr_db=0.0, drop_condition=0.0)
    plain = made._hidden(seen(4))["state_noise"]
    made = learner(state_snr_db=0.0, drop_condition=0.0)
    made.state_spread = torch.full((V,), 0.25)
    assert torch.equal(made._hidden(seen(4))["state_noise"], plain / 4)


def shown(number: int, rows: int = 32) -> dict[str, Tree]:
    """Demonstrations whose keyframe is below the hand by the brightness of the newest image of the first camera."""
    batch = demonstrated(number, rows)
    brightness = torch.rand(rows, generator=torch.Generator().manual_seed(number))
    images = (255 * brightness).to(torch.uint8).view(-1, 1, 1, 1, 1, 1).expand(batch["obs"]["images"].shape)
    obs = batch["obs"] | {"images": images, "image_mask": torch.ones(rows, 2, 2, dtype=torch.bool)}
    keyframe = obs["state"][:, :3] - brightness.unsqueeze(1) * torch.tensor([0.0, 0.0, 2.0])
    return batch | {"obs": obs, "keyframe": keyframe}


def test_keyframes_are_located_in_images() -> None:
    made = learner(keyframe_coef=1.0, drop_condition=0.0, augment=0.0, state_snr_db=60.0, ema_max=0.9)

    def error() -> float:
        """Mean distance of the predicted keyframe along z, in standard deviations of the brightness times 2."""
        batch = shown(10_000, 64)
        wanted = made.policy.keyframe_target(batch["keyframe"])
        off = made.acting.condition(batch["obs"]).keyframe_R3 - wanted
        return float(off[:, 2].square().mean().sqrt() / wanted[:, 2].std())

    before = error()
    figures = [made.update(shown(number)) for number in range(150)]
    assert error() < 0.25 < 0.5 < before, (before, error())
    assert figures[-1]["losses/keyframe"] < 0.1 * figures[0]["losses/keyframe"]


def test_the_loss_of_chunks_does_not_train_the_keyframe_head_and_the_policy_observes_its_output() -> None:
    made = learner(keyframe_coef=1e-30, lr=1e-2, weight_decay=0.0)
    torch.nn.init.normal_(made.policy.model.final_layer.ffn_final.fc2.weight)
    batch = shown(0)
    chunk, _ = made.policy(batch["obs"], torch.zeros(32, T, V), batch["action_mask"], torch.zeros(32, dtype=torch.long))
    chunk.square().mean().backward()
    assert all(weight.grad is None for weight in made.policy.keyframe.parameters())
    assert all(bool(weight.grad.abs().sum() > 0) for weight in made.policy.keyframe_adaptor.parameters())


def test_parts_of_a_batch_and_resumes_keep_the_loss_of_keyframes() -> None:
    one, other = (learner(double=True, keyframe_coef=0.5, gradient_accumulation_steps=parts) for parts in (1, 4))
    for number in range(2):
        first, second = one.update(shown(number, 10)), other.update(shown(number, 10))
        for name in first:
            torch.testing.assert_close(first[name], second[name], rtol=1e-9, atol=1e-12)
    again = learner(double=True, keyframe_coef=0.5)
    again.load_state_dict(tree_map(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, one.state_dict()))
    first, second = one.update(shown(5)), again.update(shown(5))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_without_images_the_keyframe_follows_from_state_and_instruction() -> None:
    torch.manual_seed(0)
    policy = RDTPolicy(RDTSize(32, 2, 4), SHAPE, None, keyframe_entries=range(3))
    policy.set_instructions(*hash_instructions(SAID))
    assert policy.condition(seen(4, pictures=False)).keyframe_R3.shape == (4, 3)
