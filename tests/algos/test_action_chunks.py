"""Action chunks: codes decode exactly, cloning and diffusion learn, averaged weights act, a resume repeats the bits."""

import pytest
import torch
from torch import nn

from powerband.algos.chunks.action_chunks import ActionChunkLearner
from powerband.algos.chunks.diffusion import noise_sampler, noise_schedule
from powerband.algos.chunks.settings import ChunkConfig
from powerband.core.errors import ConfigError
from powerband.core.rank_context import RankContext
from powerband.data.types import EnvSpec, TensorSpec
from powerband.nets.chunks.policy import ChunkPolicy, nearest
from powerband.recipes.sketchnav.learners import ACTION_CODES

pytest.importorskip("diffusers")
pytest.importorskip("accelerate")
SETTINGS = {"unet": (16, 32), "horizon": 8, "exec_horizon": 4, "ema": 0.9, "lr": 3e-3, "predict": "sample"}


class Encoder(nn.Module):
    """Encoder of three numbers. It counts how often its cache is cleared."""

    width = 16

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, self.width)
        self.clears = 0

    def clear_cache(self) -> None:
        self.clears += 1

    def forward(self, obs: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.tanh(self.layer(obs["x"]))


def learner(kind: str, **settings) -> ActionChunkLearner:
    torch.manual_seed(0)
    return make_learner(kind, ChunkConfig(**{**SETTINGS, **settings}))


def make_learner(kind: str, config: ChunkConfig, precision: str = "fp32") -> ActionChunkLearner:
    spec = EnvSpec({"x": TensorSpec((3,))}, TensorSpec((), torch.int64), num_actions=len(ACTION_CODES))
    unet = config.unet if kind == "diffusion" else None
    sizes = config.horizon, *ACTION_CODES.shape, unet, config.gru
    context = RankContext.single("cpu", precision)
    return ActionChunkLearner(spec, config, context, ACTION_CODES, lambda: ChunkPolicy(Encoder(), *sizes))


def demonstrated(number: int, rows: int = 64) -> dict:
    """Chunks of FORWARD, then LEFT, RIGHT or STOP; the largest of three numbers selects the step and the action."""
    x = torch.randn(rows, 3, generator=torch.Generator().manual_seed(number))
    kind = x.argmax(1)
    step = torch.arange(SETTINGS["horizon"])
    after = torch.tensor([2, 3, 0])[kind].unsqueeze(1)
    return {"obs": {"x": x}, "action": torch.where(step < 2 + kind.unsqueeze(1), 1, after)}


def test_codes_decode_exactly_and_with_noise_below_half_their_distance() -> None:
    action = torch.randint(4, (50, 16))
    assert torch.equal(nearest(ACTION_CODES[action], ACTION_CODES), action)
    off = torch.randn(50, 16, 2)
    off = 0.69 * off / off.norm(dim=-1, keepdim=True)  # half of the least distance of two codes is 0.707
    assert torch.equal(nearest(ACTION_CODES[action] + off, ACTION_CODES), action)


@pytest.mark.parametrize("kind", ["clone", "diffusion"])
def test_the_learner_imitates_demonstrations(kind: str) -> None:
    trained = learner(kind)
    unseen = demonstrated(10_000, 200)
    before = trained.act(unseen["obs"], None, False)[0]
    for number in range(100):
        figures = trained.update(demonstrated(number))
    after = trained.act(unseen["obs"], None, False)[0]
    right = [float((chunk == unseen["action"]).float().mean()) for chunk in (before, after)]
    assert right[0] < 0.6 and right[1] > 0.9, right
    assert all(bool(torch.isfinite(value)) for value in figures.values())


@pytest.mark.parametrize("kind", ["clone", pytest.param("diffusion", marks=pytest.mark.slow)])
def test_a_policy_with_a_gru_acts_on_what_it_saw_before(kind: str) -> None:
    """Only the first observation of an episode says which action is right at all later steps."""
    trained, steps = learner(kind, gru=32, lr=1e-2), 6
    for number in range(250):
        trained.update(remembered(number, steps))
    unseen = remembered(10_000, steps, sequences=100)
    carry = trained.initial_carry(100)
    for step in range(steps):
        chunk, _, carry = trained.act({"x": unseen["obs"]["x"][step]}, carry, False)
    right = float((chunk == unseen["action"][-1]).float().mean())
    assert right > 0.9, right
    forgotten = trained.act({"x": unseen["obs"]["x"][-1]}, trained.initial_carry(100), False)[0]
    assert float((forgotten == unseen["action"][-1]).float().mean()) < 0.6


def remembered(number: int, steps: int, sequences: int = 32) -> dict:
    """Sequences whose first observation determines all chunks."""
    generator = torch.Generator().manual_seed(number)
    x = torch.randn(steps, sequences, 3, generator=generator)
    x[1:] = 0
    action = 1 + x[0].argmax(1)
    return {
        "obs": {"x": x},
        "action": action.view(1, -1, 1).expand(steps, -1, SETTINGS["horizon"]),
        "carry": torch.randn(sequences, 32, generator=generator),  # has no effect, because an episode starts
        "starts": (torch.arange(steps) == 0).unsqueeze(1).expand(steps, sequences),
    }


def test_the_head_computes_only_steps_with_labels() -> None:
    trained, batch = learner("clone", gru=32), remembered(0, 6, sequences=4)
    inputs = batch["obs"], None, None, batch["carry"], batch["starts"]
    rows = torch.arange(24) % 6 >= 3  # by sequence: the second half of each
    torch.testing.assert_close(trained.policy(*inputs, rows), trained.policy(*inputs)[rows])
    seen: list[int] = []
    trained.policy.logits.register_forward_pre_hook(lambda module, given: seen.append(len(given[0])))
    valid = (torch.arange(6) >= 3).view(6, 1, 1).expand(6, 4, SETTINGS["horizon"])
    trained.update({**batch, "valid": valid})
    assert seen == [12]


def test_a_step_at_a_time_is_the_same_as_a_sequence() -> None:
    policy = learner("clone", gru=8).policy
    batch = remembered(0, 5, sequences=3)
    whole = policy.encode_sequences(batch["obs"], torch.ones(3, 8), batch["starts"]).view(3, 5, 8)
    carry = torch.zeros(3, 8)
    for step in range(5):
        features, carry = policy.encode({"x": batch["obs"]["x"][step]}, carry)
        torch.testing.assert_close(features, whole[:, step])


@pytest.mark.parametrize("predict", ["epsilon", "sample"])
@pytest.mark.parametrize("sampler", ["ddim", "dpm"])
def test_a_perfect_network_draws_the_chunk(predict: str, sampler: str) -> None:
    """If the network predicts the true noise or chunk, each sampler returns the chunk."""
    config = ChunkConfig(predict=predict, sampler=sampler)
    chunk = ACTION_CODES[torch.randint(4, (5, 16))]
    noise = torch.randn(5, 16, 2)
    schedule, draws = noise_schedule(config), noise_sampler(config)
    draws.set_timesteps(config.sample_steps)
    now = schedule.add_noise(chunk, noise, draws.timesteps[:1].long().expand(5))
    for step in draws.timesteps:
        kept = schedule.alphas_cumprod[step.long()]
        true = (now - kept.sqrt() * chunk) / (1 - kept).sqrt() if predict == "epsilon" else chunk
        now = draws.step(true, step, now).prev_sample
    assert torch.allclose(now, chunk, atol=0.02)


def test_averaged_weights_act() -> None:
    trained = learner("clone", ema=0.5)
    first = {name: value.clone() for name, value in trained.policy.state_dict().items()}
    trained.update(demonstrated(0))
    keep = 2 / 11  # (1 + n) / (10 + n) at the first update
    for name, value in trained.policy.state_dict().items():
        assert torch.allclose(trained.acting.state_dict()[name], keep * first[name] + (1 - keep) * value, atol=1e-6)
    assert not any(parameter.requires_grad for parameter in trained.acting.parameters())
    assert trained.policy_state().keys() == trained.acting.state_dict().keys()


def test_an_update_clears_the_feature_caches_of_the_network_that_acts() -> None:
    trained = learner("clone")
    for number in range(3):
        trained.update(demonstrated(number))
    assert trained.acting.encoder.clears == 3 and trained.policy.encoder.clears == 0


@pytest.mark.parametrize("kind", ["clone", "diffusion"])
def test_a_restored_learner_repeats_the_bits(kind: str) -> None:
    one = learner(kind)
    for number in range(3):
        one.update(demonstrated(number))
    state = {name: value for name, value in one.state_dict().items()}
    other = learner(kind)
    other.load_state_dict({name: _copied(value) for name, value in state.items()})
    for number in range(3, 6):
        assert torch.equal(
            one.update(demonstrated(number))["losses/" + kind], other.update(demonstrated(number))["losses/" + kind]
        )
    for a, b in zip(one.policy.parameters(), other.policy.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("kind", ["clone", "diffusion"])
def test_actions_that_are_not_valid_have_no_loss(kind: str) -> None:
    batch, losses = demonstrated(0), []
    valid = torch.arange(SETTINGS["horizon"]).expand_as(batch["action"]) < 5
    if kind == "clone":
        for action in (batch["action"], torch.where(valid, batch["action"], 1)):
            losses.append(learner(kind).update({**batch, "action": action, "valid": valid})["losses/clone"])
    else:
        whole = learner(kind).update({**batch, "valid": torch.ones_like(valid)})["losses/diffusion"]
        torch.testing.assert_close(learner(kind).update(batch)["losses/diffusion"], whole)
        losses = [learner(kind).update({**batch, "valid": valid})["losses/diffusion"] for _ in range(2)]
        assert not torch.isclose(losses[0], whole)
    assert torch.equal(*losses)


def _copied(value):
    if isinstance(value, dict):
        return {name: _copied(item) for name, item in value.items()}
    return value.clone() if isinstance(value, torch.Tensor) else value


def test_precisions_follow_one_another_in_one_process() -> None:
    """A search measures several precisions in one process."""
    for name in ("fp32", "bf16", "fp32"):
        trained = make_learner("clone", ChunkConfig(**SETTINGS), name)
        assert bool(torch.isfinite(trained.update(demonstrated(0))["losses/clone"]))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"exec_horizon": 17}, "exec_horizon=17 is above chunks.horizon=16"),
        ({"frames": 0}, "frames=0: 0 is below 1"),
        ({"ema": 1.0}, "ema=1"),
        ({"sample_steps": 1001}, "sample_steps=1001"),
    ],
)
def test_bad_settings_are_refused(settings: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ChunkConfig(**settings)


def test_shapes_that_do_not_divide_are_refused() -> None:
    with pytest.raises(ConfigError, match="Write a horizon that is a multiple of 4"):
        learner("diffusion", unet=(8, 8, 8), horizon=6)
    with pytest.raises(ConfigError, match="multiples of 8"):
        learner("diffusion", unet=(12,))
