"""Two gloo ranks: on half a batch each they are one rank on the joint batch, and they agree with each other.

Everything that needs two ranks but not the command line is here, because it shares one start of the ranks.
"""

from __future__ import annotations

import time
from functools import partial

import pytest
import torch

from distributed.ranks import on_ranks
from powerband.algos.chunks.action_chunks import ActionChunkLearner
from powerband.algos.chunks.settings import ChunkConfig
from powerband.algos.coma import COMA
from powerband.algos.ddpg import DDPG
from powerband.algos.dqn import DQN
from powerband.algos.fast_td3 import FastTD3
from powerband.algos.mappo import MAPPO
from powerband.algos.ppo import PPO
from powerband.algos.sac import SAC
from powerband.algos.settings import DDPGConfig, DQNConfig, FastTD3Config, PPOConfig, SACConfig, TD3Config
from powerband.algos.td3 import TD3
from powerband.algos.team_settings import COMAConfig, MAPPOConfig
from powerband.core.noise import NoiseSource
from powerband.core.optim.precision import Precision
from powerband.core.rank_context import RankContext
from powerband.core.ranks.agreement import INTERVAL_S, RankAgreement
from powerband.core.ranks.ranks import Ranks
from powerband.core.telemetry.idle_causes import causes_of_idleness
from powerband.core.telemetry.phase_clock import PhaseClock, PhaseTimes
from powerband.data.priorities import Priorities
from powerband.data.types import EnvSpec, StatisticsLearner, TensorSpec, Tree, tree_map
from powerband.nets.chunks.policy import ChunkPolicy
from powerband.recipes.sketchnav.env.env import make_env_spec as sketchnav_spec
from powerband.recipes.sketchnav.env.world import Rules
from powerband.recipes.sketchnav.learners import ACTION_CODES
from powerband.recipes.sketchnav.nets.sketch_net import SketchNet, SketchNetConfig
from powerband.recipes.snakes.nets.team import TeamMLP
from powerband.recipes.uav.env.env import make_env_spec as uav_spec
from powerband.recipes.uav.env.world import World
from powerband.recipes.uav.map_net import MapNet, critic_inputs, state_inputs

BATCH, UPDATES = 64, 5
ITERATIONS = 3_000
STEPS, PIXELS, SKETCHES = 6, 36, 9
CHUNKS = ("clone", "diffusion", "recurrent diffusion")
SEQUENCES = ("sketchnav", "recurrent diffusion")
IMAGES = ("sketchnav", *CHUNKS)
TEAMS = ("coma", "mappo")
CONTINUOUS = ("sac", "td3", "fast_td3")
LEARNERS = ("sac", "td3", "fast_td3", "dqn", "ddpg", "ppo", "dials", "fused", "coma", "mappo", "sketchnav", *CHUNKS)


def make_env_spec(name: str) -> EnvSpec:
    if name in TEAMS:
        return uav_spec(World())
    if name in CONTINUOUS:
        low, high = torch.tensor([-2.0, -1.0]), torch.tensor([2.0, 1.0])
        return EnvSpec(TensorSpec((7,)), TensorSpec((2,)), low=low, high=high)
    if name == "dqn":
        return EnvSpec(TensorSpec((7,)), TensorSpec((), torch.int64), num_actions=4)
    if name == "dials":
        return EnvSpec(TensorSpec((7,)), TensorSpec((2,), torch.int64), num_actions=5, action_heads=(2, 3))
    if name == "sketchnav":
        return sketchnav_spec(PIXELS, Rules())
    return EnvSpec(TensorSpec((3, 7)), TensorSpec((3,), torch.int64), num_actions=4, num_agents=3)


def sequences(generator: torch.Generator) -> dict[str, torch.Tensor]:
    """Whole sequences (STEPS, BATCH, ...) of a navigator with memory, as the on-policy loop hands them over."""

    def normal() -> torch.Tensor:
        return torch.randn(STEPS, BATCH, generator=generator)

    def drawn(spec: TensorSpec) -> torch.Tensor:
        if spec.dtype == torch.uint8:
            return torch.randint(256, (STEPS, BATCH, *spec.shape), dtype=torch.uint8, generator=generator)
        if spec.dtype == torch.int64:
            return torch.randint(SKETCHES, (STEPS, BATCH), generator=generator)
        return torch.randn(STEPS, BATCH, *spec.shape, generator=generator)

    return {
        "obs": tree_map(drawn, make_env_spec("sketchnav").obs),
        "action": torch.randint(4, (STEPS, BATCH), generator=generator),
        "log_prob": -normal().abs(),
        "value": normal(),
        "advantages": normal(),
        "returns": normal(),
        "starts": torch.rand(STEPS, BATCH, generator=generator) < 0.2,
        "carry": torch.randn(BATCH, 16, generator=generator),
    }


def joint_batch(name: str, index: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(index)
    if name == "sketchnav":
        return sequences(generator)
    if name in CHUNKS:
        obs = tree_map(lambda leaf: leaf[0], sequences(generator)["obs"])
        action = torch.randint(4, (BATCH, 8), generator=generator)
        end = torch.where(torch.arange(BATCH) < BATCH // 2, 3, 7)  # the ranks have different numbers of valid actions
        batch = {"obs": obs, "action": action, "valid": torch.arange(8) < end.unsqueeze(1)}
        if name not in SEQUENCES:
            return batch
        memory = {key: value for key, value in sequences(generator).items() if key in ("obs", "starts", "carry")}
        actions = torch.randint(4, (STEPS, BATCH, 8), generator=generator)
        return {**memory, "action": actions, "valid": batch["valid"].expand_as(actions)}
    if name in TEAMS:
        inputs = torch.rand(BATCH, 12 if name == "coma" else 11, 11, 11, generator=generator)
        action = torch.randint(6, (BATCH,), generator=generator)
        mask = (torch.rand(BATCH, 6, generator=generator) < 0.7).scatter(1, action.unsqueeze(1), True)
        batch = {name: torch.randn(BATCH, generator=generator) for name in ("returns", "advantages")}
        return batch | {"inputs": inputs, "action": action, "mask": mask, "log_prob": -1.8 + 0.1 * batch["advantages"]}
    agents = () if name in (*CONTINUOUS, "dqn", "dials") else (3,)

    def normal(*tail: int) -> torch.Tensor:
        return torch.randn(BATCH, *agents, *tail, generator=generator)

    batch = {"obs": normal(7), "next_obs": normal(7), "reward": normal()}
    batch["terminated"] = torch.rand(BATCH, generator=generator) < 0.1
    if name in ("td3", "dqn"):
        batch["weight"] = torch.rand(BATCH, generator=torch.Generator().manual_seed(index))
    if name in CONTINUOUS:
        return batch | {"action": normal(2).clamp(-1, 1)}
    if name == "dqn":
        return batch | {"action": torch.randint(4, (BATCH,), generator=generator)}
    if name == "ddpg":
        return batch | {"action_probs": normal(4).softmax(-1)}
    shape = (BATCH, 2) if name == "dials" else (BATCH, 3)
    action = torch.randint(2 if name == "dials" else 4, shape, generator=generator)
    return batch | {
        "action": action,
        "log_prob": -normal().abs(),
        "value": normal(),
        "advantages": normal(),
        "returns": normal(),
    }


def learner_of(ranks: Ranks, name: str) -> object:
    context = RankContext(ranks, Precision("fp32", "cpu"), NoiseSource(0, "cpu", ranks.rank))
    encoder = None
    if name in ("sketchnav", *CHUNKS):
        sketches = torch.randint(256, (SKETCHES, 3, PIXELS, PIXELS), dtype=torch.uint8)
        encoder = SketchNet(sketches, PIXELS, SketchNetConfig(width=16))
    if name in CHUNKS:
        config = ChunkConfig(horizon=8, unet=(8, 16), noise_steps=50, lr=3e-3, gru=16 if name in SEQUENCES else 0)
        unet = None if name == "clone" else config.unet
        sizes = config.horizon, *ACTION_CODES.shape, unet, config.gru
        spec = make_env_spec("sketchnav")
        learner = ActionChunkLearner(spec, config, context, ACTION_CODES, lambda: ChunkPolicy(encoder, *sizes))
        for group in learner.adam.adam.param_groups:
            group["eps"] = 1e-3  # or gradients that are nothing but rounding would move weights as far as others
        return learner
    kinds = {
        "coma": (COMA, COMAConfig(width=16, actor_lr=1e-3, critic_lr=1e-3)),
        "mappo": (MAPPO, MAPPOConfig(width=16, actor_lr=1e-3)),
        "sac": (SAC, SACConfig(hidden=(32, 32))),
        "td3": (TD3, TD3Config(hidden=(32,), normalize_obs=True)),
        "fast_td3": (FastTD3, FastTD3Config(hidden=(32,), critic_hidden=(32,))),
        "dqn": (DQN, DQNConfig(hidden=(32, 32), dueling=True, quantiles=5, target_interval=2)),
        "ddpg": (DDPG, DDPGConfig(hidden=32)),
        "dials": (PPO, PPOConfig(hidden=(32,), shared_trunk=False, fused=True)),
        "ppo": (PPO, PPOConfig(hidden=(32,))),
        "fused": (PPO, PPOConfig(hidden=(32,), shared_trunk=False, fused=True)),
        "sketchnav": (PPO, PPOConfig(hidden=(16,), gru=16, activation="relu")),
    }
    kind, config = kinds[name]
    options = {} if encoder is None else {"encoder": encoder}
    if name == "coma":
        options = {"build_network": partial(MapNet, width=16), "critic_inputs": critic_inputs}
    if name == "mappo":
        options = {"build_network": partial(MapNet, width=16), "state_inputs": state_inputs}
    if name == "ddpg":
        options = {"build_network": lambda inputs, outputs: TeamMLP(inputs, 32, outputs)}
    return kind(make_env_spec(name), config, context, **options)


def train(ranks: Ranks, name: str) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    learner = learner_of(ranks, name)
    part = BATCH // ranks.world_size
    rows = slice(ranks.rank * part, (ranks.rank + 1) * part)

    def share(key: str, value: Tree) -> Tree:
        """This rank's rows; of sequences they are the second axis."""
        whole = name in SEQUENCES and key != "carry"
        return tree_map(lambda leaf: leaf[:, rows] if whole else leaf[rows], value)

    for index in range(UPDATES):
        batch = {key: share(key, value) for key, value in joint_batch(name, index).items()}
        if isinstance(learner, StatisticsLearner):
            learner.update_statistics(batch["obs"])
        learner.update(batch)
    parameters = dict(learner.policy_state())
    assert ranks.identical_on_all_ranks(list(parameters.values()))
    return {key: value.clone() for key, value in parameters.items()}


def together(ranks: Ranks) -> dict:
    """Everything that the tests below look at, from one start of the ranks."""
    learned = {name: train(ranks, name) for name in LEARNERS}
    others = {each.__name__: each(ranks) for each in (noises, weights, collectives, alone, waits, iterate)}
    return {"learned": learned, **others}


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory):
    train(Ranks(), "fused")  # compiles the kernels, which each rank would compile at the same time
    return on_ranks(together, 2, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("name", LEARNERS)
def test_two_ranks_equal_one_rank_on_the_joint_batch(name, two_ranks):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as each rank has: sums over more of them round in another order
    try:
        alone = train(Ranks(), name)
    finally:
        torch.set_num_threads(threads)
    torch.manual_seed(0)
    begun = learner_of(Ranks(), name).policy_state()
    first, second = (rank["learned"][name] for rank in two_ranks)
    for key, value in alone.items():
        assert torch.equal(first[key], second[key]), f"{key} differs between the ranks"
        if name not in IMAGES:
            torch.testing.assert_close(first[key], value, rtol=1e-4, atol=1e-5)
    # Adam divides rounding by itself where a gradient is next to nothing, and how convolutions round depends on the
    # processor: 0.2 and 0.4 % of the way are seen for the policies of chunks, and 6 and 9 % where each gradient is off
    # by a twentieth of its mean size.
    off, way = (
        torch.cat([(one[key] - other[key]).flatten() for key in alone]).norm()
        for one, other in ((first, alone), (alone, begun))
    )
    assert float(off) < 1e-2 * float(way), (float(off), float(way))


def noises(ranks: Ranks) -> dict[str, torch.Tensor]:
    return {"noise": NoiseSource(0, "cpu", ranks.rank)("exploration", 8).uniform(4)}


def test_no_two_ranks_draw_the_same_noise_and_world_size_changes_nothing(two_ranks):
    first, second = (rank["noises"] for rank in two_ranks)
    assert not torch.isin(first["noise"], second["noise"]).any()
    whole = NoiseSource(0)("exploration", 16).uniform(4)
    assert torch.equal(torch.cat([first["noise"], second["noise"]]), whole)


def weights(ranks: Ranks) -> dict[str, torch.Tensor]:
    priorities = Priorities(10, "cpu", 1.0, 0.5, ranks.max_)
    rows = torch.arange(4)
    priorities.update(rows, torch.tensor([1.0, 2.0, 3.0, 4.0]) ** (1 + ranks.rank))
    return {"weights": priorities.weights(rows, torch.tensor(4))}


def test_importance_weights_have_one_scale(two_ranks):
    """A row is drawn with half of its probability on its rank, and the two replays have eight rows together."""
    priority = torch.stack([torch.tensor([1.0, 2.0, 3.0, 4.0]) ** (1 + rank) for rank in range(2)])
    weight = (8 * priority / priority.sum(1, keepdim=True) / 2) ** -0.5
    for rank, expected in zip(two_ranks, weight / weight.max(), strict=True):
        torch.testing.assert_close(rank["weights"]["weights"], expected, rtol=1e-4, atol=0)


def collectives(ranks: Ranks) -> dict[str, torch.Tensor]:
    values = ranks.gather({"rank": ranks.rank, "text": "x" * (1 + 5 * ranks.rank)})
    same = ranks.identical_on_all_ranks([torch.ones(3)])
    different = ranks.identical_on_all_ranks([torch.full((3,), float(ranks.rank))])
    texts = [len(value["text"]) for value in values]
    mean = ranks.average_(torch.tensor([float(ranks.rank)]))
    return {"texts": torch.tensor(texts), "same": torch.tensor([same, different]), "mean": mean}


def test_collectives(two_ranks):
    for result in (rank["collectives"] for rank in two_ranks):
        assert result["texts"].tolist() == [1, 6]
        assert result["same"].tolist() == [True, False]
        assert result["mean"].item() == 0.5


def alone(ranks: Ranks) -> dict[str, torch.Tensor]:
    """Rank 1 averages by itself while rank 0 is elsewhere; then both average together."""
    by_itself = torch.tensor([float(ranks.rank)])
    if ranks.rank == 1:
        with ranks.without_collectives():
            ranks.average_(by_itself)
    return {"alone": by_itself, "together": ranks.average_(torch.tensor([float(ranks.rank)]))}


def test_collectives_can_be_switched_off_for_one_rank(two_ranks):
    for rank, result in enumerate(each["alone"] for each in two_ranks):
        assert result["alone"].item() == rank and result["together"].item() == 0.5


def waits(ranks: Ranks) -> dict[str, torch.Tensor]:
    """Rank 0 steps 3 s and rank 1 waits for it; both spend a second in collectives anyway."""
    slow = {"update": 6.0, "env": 3.0, "collectives": 1.0}
    phases = PhaseTimes(10.0, slow if ranks.rank == 0 else {"update": 6.0, "collectives": 4.0}, {}, 9.0, {})
    return {name: torch.tensor(share) for name, share in causes_of_idleness(phases, ranks).items()}


def test_waiting_for_a_slow_rank_is_distinguished_from_collectives(two_ranks):
    for causes in (rank["waits"] for rank in two_ranks):
        shares = {name.removeprefix("perf/idle/"): float(share) for name, share in causes.items()}
        assert shares == pytest.approx({"comm-bound": 0.1, "rank-straggler": 0.15, "env-bound": 0.15})


def iterate(ranks: Ranks) -> dict[str, torch.Tensor]:
    """Iterations at which the ranks asked, and at which they found that one of them wants to log, or to stop."""
    agreement = RankAgreement(ranks, PhaseClock(ranks.device))
    asked, logged, stopped = [], [], []
    begun, wants_log, wants_stop = time.perf_counter(), False, False
    for iteration in range(ITERATIONS):
        time.sleep(0.0005 if ranks.leads else 0.001)
        passed = time.perf_counter() - begun
        wants_log = wants_log or (ranks.leads and passed > INTERVAL_S)
        wants_stop = not ranks.leads and passed > 3 * INTERVAL_S
        if not agreement.due():
            continue
        asked.append(iteration)
        log, stop = agreement.any_rank_wants(wants_log, wants_stop)
        if log:
            logged.append(iteration)
            wants_log, begun = False, time.perf_counter() if ranks.leads else begun
        if stop:
            stopped.append(iteration)
            break
    return {name: torch.tensor(found) for name, found in (("asked", asked), ("log", logged), ("stop", stopped))}


def test_ranks_stop_and_log_together_and_ask_seldom(two_ranks) -> None:
    first, second = (rank["iterate"] for rank in two_ranks)
    for name in first:
        assert torch.equal(first[name], second[name]), name
    assert len(first["stop"]) == 1 and len(first["log"]) >= 1
    assert len(first["asked"]) < int(first["stop"]) / 10


def test_a_rank_that_is_alone_asks_itself_at_each_iteration() -> None:
    agreement = RankAgreement(Ranks(), PhaseClock(torch.device("cpu")))
    for wanted in ((False, True), (True, False)):
        assert agreement.due() and agreement.any_rank_wants(*wanted) == list(wanted)
