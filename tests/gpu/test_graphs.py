"""CUDA graphs of updates follow eager updates, and a wrong replay is noticed."""

import pytest
import torch

from powerband.algos.ddpg import DDPG
from powerband.algos.sac import SAC
from powerband.algos.settings import DDPGConfig, SACConfig
from powerband.core.noise import Noise
from powerband.core.optim.compile import GraphedUpdates, all_tensors
from powerband.core.rank_context import RankContext
from powerband.data.replay import Replay
from powerband.data.types import EnvSpec, TensorSpec
from powerband.recipes.snakes.nets.team import TeamMLP

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def sac_updates(precision: str, k: int, compiled: bool = False, **options):
    torch.manual_seed(0)
    spec = EnvSpec(TensorSpec((5,)), TensorSpec((2,)), low=-torch.ones(2), high=torch.ones(2))
    context = RankContext.single("cuda", precision)
    learner = SAC(spec, SACConfig(hidden=(64, 64), compile=compiled), context)
    scalar, flag = TensorSpec(()), TensorSpec((), torch.bool)
    fields = {"obs": spec.obs, "next_obs": spec.obs, "action": spec.action, "reward": scalar, "terminated": flag}
    return around(learner, context.noise, fields, k, **options)


def compiled_sac_updates(precision: str, k: int, **options):
    return sac_updates(precision, k, compiled=True, **options)


def bicnet_updates(precision: str, k: int, **options):
    torch.manual_seed(0)
    spec = EnvSpec(TensorSpec((3, 5)), TensorSpec((3,), torch.int64), num_actions=4, num_agents=3)
    context = RankContext.single("cuda", precision)
    config = DDPGConfig(hidden=32, communicate="lstm")
    learner = DDPG(spec, config, context, lambda inputs, outputs: TeamMLP(inputs, config.hidden, outputs, "lstm"))
    fields = {
        "obs": spec.obs,
        "next_obs": spec.obs,
        "action_probs": TensorSpec((3, 4)),
        "reward": TensorSpec((3,)),
        "terminated": TensorSpec((), torch.bool),
    }
    return around(learner, context.noise, fields, k, **options)


def around(learner, noise, fields, k, **options):
    replay = Replay(512, 512, "cuda", fields)
    draw = torch.Generator("cuda").manual_seed(0)
    replay.add(
        {
            name: torch.zeros(512, dtype=torch.bool, device="cuda")
            if spec.dtype == torch.bool
            else torch.rand(512, *spec.shape, generator=draw, device="cuda")
            for name, spec in fields.items()
        }
    )
    stream = noise("replay", 64)

    def state():
        return all_tensors([learner.state_dict(), noise.state_dict()])

    updates = GraphedUpdates(lambda: learner.update(replay.sample(64, stream)), "cuda", state, k, **options)
    return updates, learner


@pytest.mark.parametrize("make", [sac_updates, compiled_sac_updates, bicnet_updates])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_replays_follow_eager(make, precision):
    eager, eager_learner = make(precision, 0)
    graphed, graphed_learner = make(precision, 5, check_interval=3)
    for index in range(6):
        list(eager.run(12))
        first = [1] if index == 0 else []  # allocates the tensors that the graph reads
        assert [made for _, made in graphed.run(12)] == [*first, 5, 5, *([1] * (2 - len(first)))]
    assert graphed.graph is not None and graphed.replays == 12
    for mine, theirs in zip(
        all_tensors(graphed_learner.state_dict()), all_tensors(eager_learner.state_dict()), strict=True
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4)


def test_an_update_that_a_graph_cannot_hold_falls_back_with_a_warning():
    state, host = torch.zeros((), device="cuda"), [0.0]

    def update():
        host[0] += 1.0  # lives on the host: a replay repeats the captured value
        state.add_(host[0])
        return {"losses/x": state.clone()}

    updates = GraphedUpdates(update, "cuda", lambda: [state], 2)
    list(updates.run(2))
    with pytest.warns(UserWarning, match="continue without a graph"):
        assert [made for _, made in updates.run(2)] == [1, 1]
    assert updates.graph is None and len(list(updates.run(4))) == 4


def test_update_does_not_synchronise():
    updates, _ = sac_updates("bf16", 0)
    list(updates.run(2))
    torch.cuda.set_sync_debug_mode("error")
    try:
        list(updates.run(3))
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_compiled_updates_follow_those_without_compilation():
    plain, plain_learner = sac_updates("fp32", 0)
    compiled, compiled_learner = compiled_sac_updates("fp32", 0)
    list(plain.run(12)), list(compiled.run(12))
    for mine, theirs in zip(
        all_tensors(compiled_learner.state_dict()), all_tensors(plain_learner.state_dict()), strict=True
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4)


def test_compiled_draws_are_those_without_compilation():
    ids = torch.arange(256)
    plain, compiled = Noise(3, "x", ids, "cuda"), Noise(3, "x", ids, "cuda", compiled=True)
    high = torch.tensor(77, device="cuda")
    for _ in range(2):
        assert torch.equal(plain.bits(7), compiled.bits(7))
        assert torch.equal(plain.integers(high, 1), compiled.integers(high, 1))
        torch.testing.assert_close(plain.normal(2, 5), compiled.normal(2, 5), rtol=1e-5, atol=1e-5)
    assert torch.equal(plain.counter, compiled.counter)
