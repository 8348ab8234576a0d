"""The off-policy loop: discrete random actions and masks, n-step windows, and learning from small images."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

import runs
from contract.fakes import Recall
from contract.registered import BitFlip
from powerband.algos.ddpg import DDPG
from powerband.algos.dqn import DQN
from powerband.algos.settings import DDPGConfig, DQNConfig
from powerband.core.config import RunConfig
from powerband.core.errors import ConfigError
from powerband.core.noise import NoiseSource
from powerband.core.run.run import Run
from powerband.data.hindsight import GoalReward
from powerband.data.replay import Replay
from powerband.data.types import EnvSpec, Learner, Step, TensorSpec, Tree
from powerband.envs.adapters.goal_reward import EnvGoalReward
from powerband.envs.adapters.gymnasium_env import GymVecEnv
from powerband.envs.workers.vector import WorkerVecEnv
from powerband.loops.config import OffPolicyConfig
from powerband.loops.evaluate import evaluate
from powerband.loops.off_policy import _warn_of_unused, off_policy, random_actions
from powerband.nets.mlp import MLP
from powerband.nets.observations.encoders import ObsEncoder


@dataclass(frozen=True)
class Config:
    run: RunConfig = field(default_factory=RunConfig)


class Doors(gymnasium.Env):
    """Two of five doors are open in each step, and the mask shows them. A closed door costs 1000.

    The reward of an open door is its number. An episode has eight steps.
    """

    observation_space = gymnasium.spaces.Dict(
        {"open": gymnasium.spaces.Box(0, 1, (5,), np.float32), "action_mask": gymnasium.spaces.MultiBinary(5)}
    )
    action_space = gymnasium.spaces.Discrete(5)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        super().reset(seed=seed)
        self.steps = 0
        return self._obs(), {}

    def step(self, action: int) -> tuple[dict, float, bool, bool, dict]:
        reward = float(action) if self.mask[action] else -1000.0
        self.steps += 1
        return self._obs(), reward, self.steps == 8, False, {}

    def _obs(self) -> dict[str, np.ndarray]:
        self.mask = np.zeros(5, np.int8)
        self.mask[self.np_random.choice(5, 2, replace=False)] = 1
        return {"open": self.mask.astype(np.float32), "action_mask": self.mask}


class Catch(gymnasium.Env):
    """A ball falls through 10 x 10 cells, and the paddle in the last row must catch it: 1, else -1.

    The two boolean planes, as in MinAtar, show the ball and the paddle. Actions: left, stay, right.
    """

    observation_space = gymnasium.spaces.Box(0, 1, (10, 10, 2), np.bool_)
    action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.row, self.column, self.paddle = 0, *self.np_random.integers(10, size=2)
        return self._obs(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.row += 1
        self.paddle = min(9, max(0, self.paddle + action - 1))
        over = self.row == 9
        reward = (1.0 if self.paddle == self.column else -1.0) if over else 0.0
        return self._obs(), reward, over, False, {}

    def _obs(self) -> np.ndarray:
        planes = np.zeros((10, 10, 2), np.bool_)
        planes[self.row, self.column, 0] = planes[9, self.paddle, 1] = True
        return planes


def train(
    env: WorkerVecEnv,
    make_learner: Callable[[Run], Learner],
    loop: OffPolicyConfig,
    folder: Path,
    env_steps: int,
    after_step: Callable[[Step, Replay], Any] | None = None,
    goal_reward: GoalReward | None = None,
    replace_actions: Callable[[Tree, torch.Tensor], torch.Tensor] | None = None,
) -> list[dict]:
    """Returns the metrics of a run, one line per tenth of it."""
    settings = RunConfig(run_dir=str(folder), gpus="none", threads=1, tensorboard=False, env_steps=env_steps)
    settings = replace(settings, log_interval=env_steps // 10)
    try:
        with Run.start(Config(settings), recipe="test", stage="train", argv=[]) as run:
            off_policy(
                run,
                env,
                make_learner(run),
                loop,
                after_step,
                goal_reward=goal_reward,
                replace_actions=replace_actions,
            )
    finally:
        env.close()
    return runs.metrics(folder)


@pytest.mark.parametrize("random_steps", [0, 160])
def test_masks_are_obeyed_by_random_and_by_learned_actions(random_steps, tmp_path):
    env = WorkerVecEnv([Doors] * 8, num_workers=0)
    loop = OffPolicyConfig(
        num_envs=8, global_batch_size=32, learning_starts=64, random_steps=random_steps, update_interval=2, n_step=2
    )
    epsilon = 1.0 if random_steps == 0 else 0.0
    rewards: list[torch.Tensor] = []
    lines = train(
        env,
        lambda run: DQN(env.spec, DQNConfig(hidden=(16,), epsilon_start=epsilon, epsilon_end=0.0), run.context),
        loop,
        tmp_path / "run",
        480,
        lambda step, replay: rewards.append(step.reward.clone()),
    )
    assert lines[-1]["grad_steps"] > 0
    assert float(torch.stack(rewards).min()) >= 0.0, "a closed door costs 1000"
    assert torch.stack(rewards[:15]).unique().tolist() == [0.0, 1.0, 2.0, 3.0, 4.0], "random actions reach all doors"


def test_replaced_actions_are_taken_and_stored(tmp_path):
    env = WorkerVecEnv([Doors] * 2, num_workers=0)
    loop = OffPolicyConfig(num_envs=2, global_batch_size=8, learning_starts=1_000, random_steps=20)
    stored: list[torch.Tensor] = []

    def open_door(obs: Tree, action: torch.Tensor) -> torch.Tensor:
        own = obs["action_mask"].to(torch.uint8).argmax(1)
        return torch.where(torch.tensor([True, False]), own, action)

    def after_step(step: Step, replay: Replay) -> None:
        newest = replay.newest(2)
        expected = newest["obs"]["action_mask"].to(torch.uint8).argmax(1)
        assert int(newest["action"][0]) == int(expected[0]) and float(step.reward[0]) == float(expected[0])
        stored.append(newest["action"][1] - expected[1])

    train(
        env,
        lambda run: DQN(env.spec, DQNConfig(hidden=(16,)), run.context),
        loop,
        tmp_path / "run",
        40,
        after_step,
        replace_actions=open_door,
    )
    assert len(stored) == 20 and bool(torch.stack(stored).any()), "the other environment takes its own actions"


def drawn(spec: EnvSpec, obs: Any) -> torch.Tensor:
    """Random actions of 1,000 environments."""
    env = SimpleNamespace(spec=spec, device=torch.device("cpu"))
    return random_actions(NoiseSource(0, "cpu", 0)("random actions", 1_000), env, obs)


def test_random_actions_of_several_entries_are_drawn_for_each_entry():
    spec = EnvSpec(TensorSpec((1,)), TensorSpec((2,), torch.int64), num_actions=5, action_heads=(2, 3))
    actions = drawn(spec, torch.zeros(1_000, 1))
    assert [column.unique().tolist() for column in actions.unbind(1)] == [[0, 1], [0, 1, 2]]
    mask = torch.tensor([True, False, False, True, True]).expand(1_000, 5)
    actions = drawn(spec, {"obs": torch.zeros(1_000, 1), "action_mask": mask})
    assert [column.unique().tolist() for column in actions.unbind(1)] == [[0], [1, 2]]


def test_random_actions_without_bounds_are_finite():
    low, high = torch.tensor([-math.inf, 3.0, -math.inf, -2.0]), torch.tensor([math.inf, math.inf, -3.0, 2.0])
    actions = drawn(EnvSpec(TensorSpec((1,)), TensorSpec((4,)), low=low, high=high), torch.zeros(1_000, 1))
    assert actions.amin(0).round().tolist() == [-1, 3, -4, -2] and actions.amax(0).round().tolist() == [1, 4, -3, 2]


def test_scaled_rewards_of_batches_are_limited(tmp_path):
    env = WorkerVecEnv([Doors] * 2, num_workers=0)
    loop = OffPolicyConfig(num_envs=2, global_batch_size=8, learning_starts=8, normalize_reward=True, random_steps=8)
    rewards: list[float] = []

    class Recording(DQN):
        def update(self, batch):
            rewards.append(float(batch["reward"].abs().max()))
            return super().update(batch)

    monkey = pytest.MonkeyPatch()
    monkey.setattr("powerband.loops.off_policy.MAX_SCALED", 1e-3)
    with monkey.context():
        train(env, lambda run: Recording(env.spec, DQNConfig(hidden=(8,)), run.context), loop, tmp_path / "run", 20)
    monkey.undo()
    assert rewards and max(rewards) == pytest.approx(1e-3)


@pytest.mark.parametrize(
    ("options", "device", "message"),
    [
        ({"graph_updates": 4}, "cpu", "graph_updates=4 has no effect on cpu.*Leave it out"),
        ({"graph_updates": 4}, "cuda", "graph_updates=4 has no effect, because at most 3 updates.*graph_updates=3"),
        ({"importance_exponent": 1.0}, "cpu", "importance_exponent=1 has no effect without prioritised replay"),
    ],
)
def test_options_without_effect_are_reported(options, device, message):
    with pytest.warns(UserWarning, match=message):
        _warn_of_unused(OffPolicyConfig(**options), torch.device(device), 3)


def test_options_with_an_effect_are_not_reported(recwarn):
    _warn_of_unused(OffPolicyConfig(graph_updates=4), torch.device("cuda"), 4)
    assert not recwarn.list


@pytest.mark.parametrize(("num_envs", "settings", "expected"), [(3, {"update_interval": 2}, 4), (2, {}, 2)])
def test_updates_of_all_intervals_in_a_step_are_due(num_envs, settings, expected, tmp_path, monkeypatch):
    found: list[int] = []
    monkeypatch.setattr("powerband.loops.off_policy._warn_of_unused", lambda config, device, due: found.append(due))
    env = WorkerVecEnv([Recall] * num_envs, num_workers=0)
    loop = OffPolicyConfig(num_envs=num_envs, global_batch_size=4, learning_starts=4, **settings)
    train(env, lambda run: DQN(env.spec, DQNConfig(hidden=(8,)), run.context), loop, tmp_path / "run", 12)
    assert found == [expected]


def test_a_replay_smaller_than_a_step_is_refused_with_sizes_over_all_ranks():
    with pytest.raises(ConfigError, match="replay_size=6 is below off_policy.num_envs=8.*off_policy.replay_size=8 or"):
        OffPolicyConfig(num_envs=8, replay_size=6, global_batch_size=2).check(2)


def test_random_steps_are_refused_for_a_learner_that_stores_probabilities(tmp_path):
    env = WorkerVecEnv([Recall] * 2, num_workers=0)
    loop = OffPolicyConfig(num_envs=2, global_batch_size=8, random_steps=100)
    with pytest.raises(ConfigError, match="random_steps=100 .* action_probs .* Write off_policy.random_steps=0"):
        train(
            env,
            lambda run: DDPG(env.spec, DDPGConfig(), run.context, lambda i, o: MLP(i, (8,), o)),
            loop,
            tmp_path / "run",
            100,
        )


def test_prioritised_replay_is_refused_for_a_learner_without_errors(tmp_path):
    env = WorkerVecEnv([Recall] * 2, num_workers=0)
    loop = OffPolicyConfig(num_envs=2, global_batch_size=8, priority_exponent=0.6)
    with pytest.raises(ConfigError, match="priority_exponent=0.6 is not supported .* Write priority_exponent=0"):
        train(
            env,
            lambda run: DDPG(env.spec, DDPGConfig(), run.context, lambda i, o: MLP(i, (8,), o)),
            loop,
            tmp_path / "run",
            100,
        )


def test_windows_of_the_loop_end_with_their_episodes(tmp_path):
    """Episodes of Recall have four steps; step k of an episode stores k / 4 as its next observation."""
    env = WorkerVecEnv([Recall] * 3, num_workers=0)
    loop = OffPolicyConfig(num_envs=3, global_batch_size=16, replay_size=50, learning_starts=1_000, n_step=3)
    found: list[dict] = []
    train(
        env,
        lambda run: DQN(env.spec, DQNConfig(hidden=(8,)), run.context),
        loop,
        tmp_path / "run",
        120,
        lambda step, replay: found.append(replay.sample(16, torch.Generator().manual_seed(len(found)))),
    )
    for batch in found[4:]:
        begins = (batch["obs"][:, 1] * 4).round().long()
        ends = (batch["next_obs"][:, 1] * 4).round().long()
        assert torch.equal(ends - begins, batch["steps"])
        assert bool((batch["terminated"] == (ends == 4)).all())
        assert bool((batch["steps"] <= 3).all()) and bool(((batch["reward"] != 0) == (ends == 4)).all())
    assert {1, 2, 3} == set(torch.cat([batch["steps"] for batch in found]).tolist())


@pytest.mark.slow
def test_dqn_learns_from_small_boolean_images(tmp_path):
    env = WorkerVecEnv([Catch] * 16, num_workers=0)
    loop = OffPolicyConfig(
        num_envs=16, global_batch_size=32, learning_starts=500, update_interval=16, updates_per_interval=4, n_step=3
    )
    settings = DQNConfig(lr=2e-3, hidden=(), epsilon_steps=5_000, epsilon_end=0.02, tau=0.05)
    lines = train(
        env,
        lambda run: DQN(env.spec, settings, run.context, ObsEncoder(env.spec.obs)),
        loop,
        tmp_path / "run",
        10_000,
    )
    returns = [line["charts/episodic_return"] for line in lines]
    assert returns[-1] > 0.5 > 0.0 > returns[0], returns


def test_statistics_are_those_of_the_collected_steps(tmp_path):
    """The replay and the metrics have raw values; the learner gets scaled rewards."""
    env = WorkerVecEnv([Catch] * 4, num_workers=0)
    env.spec = replace(env.spec, obs=TensorSpec((10, 10, 2), torch.bool))
    loop = OffPolicyConfig(num_envs=4, global_batch_size=16, learning_starts=100, normalize_reward=True)
    learners: list[DQN] = []
    stored: list[torch.Tensor] = []
    batches: list[torch.Tensor] = []

    def make(run: Run) -> DQN:
        learner = DQN(env.spec, DQNConfig(hidden=(8,), normalize_obs=True), run.context)
        update = learner.update
        learner.update = lambda batch: (batches.append(batch["reward"].clone()), update(batch))[1]
        learners.append(learner)
        return learner

    train(env, make, loop, tmp_path / "run", 200, lambda step, replay: stored.append(replay.stored["obs"].float()))
    rows = stored[-1].flatten(1)
    norm = learners[0].obs_norm
    assert int(norm.count) == len(rows) == 200
    torch.testing.assert_close(norm.mean, rows.mean(0), rtol=0, atol=1e-5)
    torch.testing.assert_close(norm.var, rows.var(0, unbiased=False), rtol=0, atol=1e-5)
    assert batches[-1].abs().max() > 1.5, "the rewards are 1 and -1 at the ends of episodes, and 0 elsewhere"


@pytest.mark.parametrize("hindsight", [0, 4])
def test_hindsight_makes_bit_flipping_learnable(tmp_path, hindsight):
    """With eight bits, random play rarely reaches a goal, so that DQN alone sees almost no reward."""
    env = GymVecEnv("contract.registered:BitFlip-v0", 16)
    loop = OffPolicyConfig(
        num_envs=16,
        global_batch_size=128,
        learning_starts=500,
        update_interval=16,
        updates_per_interval=2,
        hindsight=hindsight,
    )
    settings = DQNConfig(lr=2e-3, hidden=(128,), epsilon_steps=4_000, epsilon_end=0.02, tau=0.05, gamma=0.95)
    learners: list[DQN] = []

    def make(run: Run) -> DQN:
        learners.append(DQN(env.spec, settings, run.context))
        return learners[-1]

    train(env, make, loop, tmp_path / "run", 6_400, goal_reward=EnvGoalReward(BitFlip()))
    played = GymVecEnv("contract.registered:BitFlip-v0", 16, seed=9)
    figures = evaluate(played, lambda obs, carry: (learners[0].act(obs, carry, False)[0], None), 200, 9)
    reached = float((figures["return"] > -8).float().mean())
    assert reached > 0.9 if hindsight else reached < 0.5, reached  # 1.0, and 0.01 to 0.02, with seeds 0 to 3


def test_hindsight_is_refused_without_goals_and_with_windows(tmp_path):
    env = WorkerVecEnv([Recall] * 2, num_workers=0)
    loop = OffPolicyConfig(num_envs=2, global_batch_size=8, hindsight=4)
    with pytest.raises(ConfigError, match="hindsight=4 is not supported by this recipe"):
        train(env, lambda run: DQN(env.spec, DQNConfig(hidden=(8,)), run.context), loop, tmp_path / "run", 100)
    for option in ({"n_step": 3}, {"graph_updates": 2}):
        with pytest.raises(ConfigError, match="hindsight=4 does not support off_policy"):
            replace(loop, **option).check(1)


def test_the_replay_has_clipped_rewards(tmp_path):
    env = WorkerVecEnv([Doors] * 2, num_workers=0)
    loop = OffPolicyConfig(num_envs=2, global_batch_size=8, learning_starts=1_000, clip_reward=1.0)
    found: list[tuple[torch.Tensor, torch.Tensor]] = []
    train(
        env,
        lambda run: DQN(env.spec, DQNConfig(hidden=(8,)), run.context),
        loop,
        tmp_path / "run",
        40,
        lambda step, replay: found.append((step.reward.clone(), replay.newest(2)["reward"].clone())),
    )
    assert all(torch.equal(kept, raw.clamp(-1, 1)) for raw, kept in found)
    assert max(float(raw.max()) for raw, _ in found) > 1
