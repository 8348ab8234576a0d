"""Environments: each one against the contract, and the known rewards of the fakes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from contract.contract import MakeEnv, check_env, play
from contract.fakes import DELAY, NextStepPool, Recall, Sites
from powerband.bench.slow_envs import make_slow
from powerband.data.episode_tracker import EpisodeTracker
from powerband.data.types import Step, VecEnv, broadcast_rows
from powerband.envs.adapters.autoreset import EnvPoolVector
from powerband.envs.adapters.external import ExternalStep, ExternalVecEnv
from powerband.envs.adapters.gymnasium_env import GymVecEnv
from powerband.envs.workers.vector import EnvFn, WorkerVecEnv
from powerband.recipes.snakes.env.opponents import RandomOpponent


def gym(env_id: str, num_workers: int) -> MakeEnv:
    return lambda num_envs, seed, first_env: GymVecEnv(env_id, num_envs, num_workers, seed=seed, first_env=first_env)


def workers(make: EnvFn, num_workers: int, episode_metrics: tuple[str, ...] = ()) -> MakeEnv:
    return lambda num_envs, seed, first_env: WorkerVecEnv(
        [make] * num_envs, num_workers=num_workers, seed=seed, first_env=first_env, episode_metrics=episode_metrics
    )


def pool(num_envs: int, seed: int, first_env: int) -> VecEnv:
    return ExternalVecEnv(EnvPoolVector(NextStepPool, num_envs), seed=seed, first_env=first_env)


def near_upright(obs: torch.Tensor) -> torch.Tensor:
    return (obs.abs() <= 0.05).all(1)


def snakes(num_envs: int, seed: int, first_env: int) -> VecEnv:
    from powerband.recipes.snakes.env.env import SnakesEnv

    return SnakesEnv(num_envs, seed=seed, first_board=first_env, mirrored=0.0, opponents=[(1.0, RandomOpponent())])


def uav(num_envs: int, seed: int, first_env: int) -> VecEnv:
    from powerband.recipes.uav.env.env import UavEnv
    from powerband.recipes.uav.env.world import World

    world = World(map_cells=44, budget=5, failure_rate=0.2)
    return UavEnv(num_envs, world, seed=seed, first_env=first_env, threads=1)


def has_full_budget(obs: dict) -> torch.Tensor:
    return (obs["maps"][:, :, 0] == 1).flatten(1).all(1)


def sketchnav(num_envs: int, seed: int, first_env: int) -> VecEnv:
    from powerband.recipes.sketchnav.env.env import SketchNavEnv
    from powerband.recipes.sketchnav.plans.episodes.episodes import EpisodeConfig
    from powerband.recipes.sketchnav.plans.episodes.generation import generate_episodes

    episodes = generate_episodes(EpisodeConfig(max_size_m=8.5, plans=4, goals=2, starts=20, sketch_px=36), "train", 0)
    options = {"pixels": 16, "explored": 32, "threads": 1, "seed": seed, "first_env": first_env}
    return SketchNavEnv(num_envs, episodes, **options)


def at_the_start(obs: dict) -> torch.Tensor:
    return (obs["gps"] == 0).all(1)


def metaworld(backend: str) -> MakeEnv:
    """Episodes of six steps; skips the test if the simulator is not installed."""

    def make(num_envs: int, seed: int, first_env: int) -> VecEnv:
        from powerband.recipes.metaworld.env.vec_env import TaskConfig, make_metaworld_vec_env

        pytest.importorskip({"envpool": "envpool"}.get(backend, "metaworld"))
        return make_metaworld_vec_env(
            TaskConfig("push", 6, backend=backend), num_envs, 0, seed=seed, first_env=first_env
        )

    return make


def at_rest(obs: torch.Tensor) -> torch.Tensor:
    return (obs[:, :18] == obs[:, 18:36]).all(1)


ARMS = dict(steps=20, num_envs=2, terminates=False, is_first_obs=at_rest)  # creating one takes a third of a second

# One line per environment: the function that creates it, and arguments of `check_env`.
ENVS: dict[str, tuple[MakeEnv, dict]] = {
    "pendulum, in process": (gym("Pendulum-v1", 0), dict(terminates=False)),
    "pendulum, 2 workers": (gym("Pendulum-v1", 2), dict(terminates=False)),
    "cartpole, in process": (gym("CartPole-v1", 0), dict(terminates=True, is_first_obs=near_upright)),
    "cartpole, 2 workers": (gym("CartPole-v1", 2), dict(terminates=True, is_first_obs=near_upright)),
    "recall": (workers(Recall, 1, ("success",)), dict(steps=40, is_first_obs=lambda obs: obs[:, 0].abs() == 1)),
    "sites": (workers(Sites, 2), dict(steps=60, is_first_obs=lambda obs: obs["extra"]["step"] == 0)),
    "dials": (gym("contract.registered:Dials-v0", 0), dict(steps=30, terminates=True)),
    "bit flip": (gym("contract.registered:BitFlip-v0", 0), dict(steps=30)),
    "next-step pool": (pool, dict(steps=60, terminates=True, is_first_obs=lambda obs: obs[:, 1] == 0)),
    "snakes": (snakes, dict(steps=420, terminates=False)),
    "uav": (uav, dict(steps=40, terminates=True, is_first_obs=has_full_budget)),
    "sketchnav": (sketchnav, dict(steps=60, terminates=True, is_first_obs=at_the_start)),
    "metaworld, in process": (metaworld("workers"), ARMS),
    "metaworld, threads": (metaworld("threads"), ARMS),
    "metaworld, pool": (metaworld("envpool"), ARMS),
    "slow tracking": (workers((make_slow, {"step_ms": 0.0}), 1), dict(terminates=False)),
}


SLOW = ("pendulum, 2 workers",)
"""As slow as any environment in workers, and covered by that of the pole."""


@pytest.mark.parametrize("name", [pytest.param(each, marks=[pytest.mark.slow] * (each in SLOW)) for each in ENVS])
def test_environment_keeps_the_contract(name: str) -> None:
    make_env, facts = ENVS[name]
    check_env(make_env, **facts)


class Broken:
    """Environments that break the protocol in the way that `breach` names."""

    def __init__(self, env: VecEnv, breach: str) -> None:
        self.env, self.breach = env, breach

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

    def reset(self, seed: int | None = None) -> torch.Tensor:
        self.obs = self.env.reset(0 if self.breach == "ignores its seed" else seed)
        return self.obs

    def recv(self) -> Step:
        return self.step(None)

    def step(self, action: torch.Tensor | None) -> Step:
        step = self.env.recv() if action is None else self.env.step(action)
        if self.breach == "overwrites its results":
            step.obs = self.obs.copy_(step.obs)
        if self.breach == "returns the first observation as the last" and step.final_obs is not None:
            step.final_obs = step.obs
        if self.breach == "returns the last observation twice" and step.final_obs is not None:
            step.obs = step.next_obs()
        if self.breach == "terminates at a time limit":
            step.terminated, step.truncated = step.ended, torch.zeros_like(step.truncated)
        if self.breach == "returns float64":
            step.reward = step.reward.double()
        return step

    def load_state_dict(self, state: dict) -> None:
        if self.breach != "ignores the saved state":
            self.env.load_state_dict(state)


BREACHES = {
    "ignores its seed": "the seed has no effect",
    "overwrites its results": "differs after the next step",
    "returns the first observation as the last": "final_obs is the first observation of the next episode",
    "returns the last observation twice": "final_obs is the first observation of the next episode",
    "terminates at a time limit": "terminated",
    "returns float64": "reward has dtype torch.float64",
    "ignores the saved state": "after a resume",
    "counts environments from 0 on every rank": "environments 2 to 3 on a rank of their own",
    "returns reset rows as steps": "final_obs is the first observation of the next episode",
}


@pytest.mark.parametrize("breach", BREACHES)
def test_the_contract_refuses_an_environment_that(breach: str) -> None:
    def make_env(num_envs: int, seed: int, first_env: int) -> VecEnv:
        if breach == "returns reset rows as steps":
            source = EnvPoolVector(NextStepPool, num_envs)
            source.recv = lambda next_seeds: ExternalStep(*unadapted(source))
            return ExternalVecEnv(source, seed=seed, first_env=first_env)
        first = 0 if breach == "counts environments from 0 on every rank" else first_env
        limit = {"max_episode_steps": 6}
        return Broken(GymVecEnv("CartPole-v1", num_envs, 0, seed=seed, first_env=first, env_kwargs=limit), breach)

    def unadapted(source: EnvPoolVector) -> tuple:
        obs, reward, terminated, truncated, info = source._gather(source.num_envs)
        return obs, reward, terminated, truncated, obs.copy(), info

    facts = dict(steps=60, terminates=False, is_first_obs=near_upright)
    if breach == "returns reset rows as steps":
        facts = dict(steps=60, is_first_obs=lambda obs: obs[:, 1] == 0)
    with pytest.raises(AssertionError, match=BREACHES[breach]):
        check_env(make_env, **facts)


def test_the_contract_accepts_the_same_environment_without_a_breach() -> None:
    limit = {"max_episode_steps": 6}
    check_env(
        lambda n, seed, first: Broken(GymVecEnv("CartPole-v1", n, 0, seed=seed, first_env=first, env_kwargs=limit), ""),
        steps=60,
        is_first_obs=near_upright,
        terminates=False,
    )


def recall_score(carry_of: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], zeroed: bool) -> float:
    """Share of correct answers of a policy that returns the sign of its carry."""
    env = WorkerVecEnv([Recall] * 32, num_workers=0, episode_metrics=("success",))
    obs, carry = env.reset(3), torch.zeros(32)
    correct, episodes = 0.0, 0
    for _ in range(20 * DELAY):
        carry = carry_of(carry, obs[:, 0])
        step = env.step((carry > 0).long())
        correct += float(step.episode["success"][step.ended].sum())
        episodes += int(step.ended.sum())
        carry = carry * broadcast_rows(~step.ended, carry) if zeroed else carry
        obs = step.obs
    assert episodes == 32 * 20
    return correct / episodes


def test_recall_needs_a_carry_that_is_zeroed_at_the_end_of_an_episode() -> None:
    assert recall_score(lambda carry, cue: carry + cue, zeroed=True) == 1.0
    assert recall_score(lambda carry, cue: cue, zeroed=True) < 0.7
    assert recall_score(lambda carry, cue: carry + cue, zeroed=False) < 0.9


def test_sites_punish_masked_actions_and_masks_depend_on_the_other_agents() -> None:
    env = workers(Sites, 0)(8, 0, 0)
    first, played, actions = play(env, 1, 50)
    assert min(float(step.reward.min()) for step in played) == 0.0
    before = first
    for step, action in zip(played, actions, strict=True):
        mask = before["action_mask"]
        assert bool(mask.gather(-1, action.unsqueeze(-1)).all())
        others = before["state"].unsqueeze(1) - before["own"]
        assert torch.equal(mask, others == 0)
        before = step.obs
    env.reset(1)
    forbidden = (~first["action_mask"]).float().argmax(-1)
    assert float(env.step(forbidden).reward.max()) == -1000.0


def test_reset_rows_of_a_next_step_source_are_discarded() -> None:
    env = pool(6, 0, 0)
    tracker = EpisodeTracker(6, None, "cpu")
    env.reset(0)
    for _ in range(60):
        step = env.step(torch.zeros(6, dtype=torch.int64))
        episode_metrics = tracker.add(step)
        ended = step.ended
        assert bool((step.reward == 1).all())
        for name in ("charts/episodic_return", "charts/episodic_length"):
            assert torch.equal(episode_metrics[name][ended], step.next_obs()[ended, 0]), (
                "an episode has another length than its first observation"
            )
        odd = step.next_obs()[:, 0] % 2 == 1
        assert torch.equal(step.terminated, ended & odd) and torch.equal(step.truncated, ended & ~odd)
    assert int(tracker.ended) > 30
