"""UavEnv: a vectorised environment of N missions that all start and end together, on one device."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from powerband.core.errors import ConfigError
from powerband.data.types import EnvHalf, EnvSpec, Step, TensorSpec, Tree, tree_map
from powerband.envs.numba.arrays import check_action
from powerband.envs.numba.pending_action import PendingAction
from powerband.recipes.uav.env.kernels import run
from powerband.recipes.uav.env.map_file import load_map_file
from powerband.recipes.uav.env.random_field import random_field
from powerband.recipes.uav.env.rules.features import TEAM_MAPS, UAV_MAPS
from powerband.recipes.uav.env.rules.map_metrics import map_metrics
from powerband.recipes.uav.env.state import Missions
from powerband.recipes.uav.env.world import world_arrays
from powerband.recipes.uav.settings import LATTICE, NUM_ACTIONS, World

REWARD_SCALE, REWARD_OFFSET = 22.0, 0.5


def make_env_spec(world: World) -> EnvSpec:
    """Returns the observation and action spaces of `UavEnv` with the settings `world`.

    It does not build missions, because building them may compile the simulation.
    """
    return EnvSpec(
        obs={
            "maps": TensorSpec((world.n_agents, UAV_MAPS, LATTICE, LATTICE)),
            "cell": TensorSpec((world.n_agents,), torch.int64),
            "state": TensorSpec((TEAM_MAPS, LATTICE, LATTICE)),
        },
        action=TensorSpec((world.n_agents,), torch.int64),
        num_actions=NUM_ACTIONS,
        num_agents=world.n_agents,
        max_episode_steps=world.num_steps,
        resume="exact",
        overlappable=False,
    )


class UavEnv:
    """N missions, each of a team of A UAVs. Each row of the batch is a mission; the agents are the UAVs of its team.

    The reward of a move is 22 rho - 0.5, the same for all UAVs of a team. rho is the relative decrease of entropy,
    mean(W (H_before - H_after)) / mean(W H_before), over the map of all measurements. H is the entropy of a cell. Its
    weight W is 1 in the region of interest, 0 outside and 0.5 if undecided, by the map after the move. With
    ``world.reward="f1"`` the reward is 22 times the increase of the metric ``f1`` instead. A mission begins with a
    measurement at the start positions and terminates after ``world.budget`` + 1 moves. All missions begin and
    end at the same time. A move out of the lattice leaves the UAV at its position; `masked_sample` never chooses it.

    Actions are 0 up, 1 back along x, 2 back along y, 3 forward along y, 4 forward along x, 5 down, each by one step of
    the lattice or by one altitude.

    Observations: ``maps`` (N, A, 7, 11, 11) of each UAV and ``state`` (N, 4, 11, 11) of the team, float32, which the
    module `features` lists; and ``cell`` (N, A) int64, the x-y cell (11 x + y) of each UAV. Metrics of a mission, from
    the map of all measurements: ``f1``, the F1 score of the region of interest, and ``roi_entropy``, the mean entropy
    over it in bits.

    `recv`, `reset` and `observe` write to two sets of buffers in alternation. The observations that the last two of
    these calls returned are valid; older observations are overwritten.
    """

    halves: tuple[EnvHalf, ...] = ()

    def __init__(
        self,
        num_envs: int,
        world: World,
        *,
        device: torch.device | str = "cpu",
        seed: int = 0,
        threads: int | None = None,
        first_env: int = 0,
    ):
        """Creates and starts N missions.

        Args:
            num_envs: Number of missions N.
            world: Settings that all missions share.
            device: Device of maps, observations and rewards.
            seed: Seed, 0..2**63 - 1. A mission depends only on the seed, its index and the actions.
            threads: CPU threads; None uses torch's number of threads.
            first_env: Index of the first mission among the missions of all ranks.

        Raises:
            ConfigError: The map file is invalid, or a number is out of range.
        """
        if num_envs < 1:
            raise ConfigError(f"num_envs={num_envs} is below 1. Create UavEnv with 1 mission or more.")
        available = numba.config.NUMBA_NUM_THREADS  # type: ignore[attr-defined]
        self.num_envs, self.world, self.device = num_envs, world, torch.device(device)
        self.threads = min(torch.get_num_threads(), available) if threads is None else threads
        if not 1 <= self.threads <= available:
            raise ConfigError(
                f"threads={self.threads} is outside 1..{available}, the threads of numba. Pass a number in this range, "
                f"or set the environment variable NUMBA_NUM_THREADS to a higher limit."
            )
        self.seed, self.spec = seed, make_env_spec(world)
        self.tables = world_arrays(world, self.device)
        self.missions = Missions.empty(num_envs, world, first_env, self.device)
        user_map = load_map_file(world)
        if user_map is not None:
            self.missions.truth.copy_(torch.from_numpy(user_map).to(self.device).expand_as(self.missions.truth))
        self._draws_split = user_map is None and world.truth == "split"
        self._draws_field = user_map is None and world.truth == "field"
        self._obs = [tree_map(lambda spec: spec.zeros(num_envs, device=self.device), self.spec.obs) for _ in range(2)]
        self._buffer = 0
        self._pending: PendingAction[Tensor] = PendingAction()
        self.moves = 0  # in the current missions
        self._f1: Tensor | None = None  # (N,) of the current maps if the latest reward computed it
        self.resumed = torch.ones(num_envs, dtype=torch.bool, device=self.device)
        self.reset(seed)

    def reset(self, seed: int | None = None) -> Tree:
        """Starts a new mission in every row.

        Args:
            seed: New seed, which restarts the random streams; None continues the streams.

        Returns:
            Observations ``maps``, ``cell`` and ``state``; the docstring of the class explains them.

        Raises:
            ConfigError: `seed` is outside 0..2**63 - 1.
        """
        if seed is not None:
            if not 0 <= seed < 2**63:
                raise ConfigError(f"seed={seed} is outside 0..2**63 - 1. Pass a seed in this range.")
            self.seed = seed
            self.missions.tick.zero_()
            self.missions.episode.zero_()
        self._begin()
        return self.observe()

    def observe(self) -> Tree:
        """Returns the current observations ``maps``, ``cell`` and ``state``, for example after `load_state_dict`.

        The docstring of the class explains them.
        """
        self._buffer = 1 - self._buffer
        return self._write(self._obs[self._buffer])

    def masked_sample(self, probability: Tensor, noise: Tensor | None) -> tuple[Tensor, Tensor]:
        """Chooses moves for all UAVs, one after the other within a team, so that each avoids the occupied cells.

        The mask excludes moves out of the lattice, and moves to the x-y cells that earlier UAVs will occupy, unless
        such a move is the last remaining one.

        Args:
            probability: (N, A, 6) float32, probability of each move before masking. Fewer rows than missions are the
                first n missions.
            noise: (N, A) float32, uniform random numbers in [0, 1); None takes the most likely moves.

        Returns:
            Moves (N, A) int64, and the mask of allowed moves (N, A, 6) bool; n rows for n rows of `probability`.
        """
        n, agents = self.num_envs, self.world.n_agents
        rows = len(probability)
        if rows != n:  # the trials after a failed allocation; the kernel runs on all missions
            probability = torch.cat([probability, probability.new_ones(n - rows, agents, NUM_ACTIONS)])
            noise = None if noise is None else torch.cat([noise, noise.new_zeros(n - rows, agents)])
        chosen = torch.zeros(n, agents, dtype=torch.int64, device=self.device)
        mask = torch.zeros(n, agents, NUM_ACTIONS, dtype=torch.bool, device=self.device)
        uniform = torch.zeros(n, agents, device=self.device) if noise is None else noise.contiguous()
        self._run("choose", probability.contiguous(), uniform, noise is not None, chosen, mask)
        return chosen[:rows], mask[:rows]

    def send(self, action: Tensor) -> None:
        """Stores the moves (N, A) int64 of all UAVs, which `recv` then executes.

        Raises:
            ConfigError: `action` has another shape or dtype, or, on the CPU, a number that is not a move.
            RuntimeError: `recv` was not called after the previous `send`.
        """
        self._pending.check_none("send")
        check_action(action, (self.num_envs, self.world.n_agents), NUM_ACTIONS)
        self._pending.put(action.contiguous())

    def recv(self) -> Step:
        """Executes the moves that `send` stored; after the last move of the missions, it starts new ones.

        Returns:
            The step of all missions, with a reward (N, A) per UAV. `Step.episode` contains the metrics ``f1`` and
            ``roi_entropy`` (N,) after the last move, and is empty otherwise.

        Raises:
            RuntimeError: `send` was not called before.
        """
        f1_before = self._current_f1() if self.world.reward == "f1" else None
        self._run("step", self.seed, self._pending.take())
        self.moves += 1
        self._f1 = None
        if f1_before is None:
            gain, weight = self.missions.gain.double().unbind(1)
            reward = (REWARD_SCALE * gain / weight.clamp(min=1) - REWARD_OFFSET).float()
        else:
            reward = REWARD_SCALE * (self._current_f1() - f1_before)
        over = self.moves == self.world.num_steps
        final_obs, episode = None, {}
        if over:
            final_obs = self._write(tree_map(torch.empty_like, self._obs[0]))
            episode = self.score()
            self._begin()
        ended = torch.full((self.num_envs,), over, device=self.device)
        return Step(
            obs=self.observe(),
            reward=reward.unsqueeze(1).expand(-1, self.world.n_agents).contiguous(),
            terminated=ended,
            truncated=torch.zeros_like(ended),
            final_obs=final_obs,
            episode=episode,
        )

    def step(self, action: Tensor) -> Step:
        """Calls `send`, then `recv`, and returns the step."""
        self.send(action)
        return self.recv()

    def score(self, uav: int | None = None) -> dict[str, Tensor]:
        """Computes ``f1`` and ``roi_entropy`` of the current maps of N missions, (N,) float32 each.

        ``f1`` is the F1 score of the region of interest, ``roi_entropy`` the mean entropy over it in bits.

        Args:
            uav: Index of the UAV whose map is compared with the hidden map; None uses the map of all measurements.
        """
        counts = torch.zeros(self.num_envs, 4, dtype=torch.int64, device=self.device)
        self._run("count", self.world.n_agents if uav is None else uav, counts)
        return map_metrics(counts)

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of the missions and the seed, from which an environment continues bit for bit.

        Returns:
            ``seed``; ``made``, the moves so far in the current missions; and ``missions``, tensors of `Missions` by
            name. If ``made`` is 0, ``missions`` has only the counters, from which the missions are drawn again.

        Raises:
            RuntimeError: `recv` was not called after the latest `send`.
        """
        self._pending.check_none("state_dict")
        names = [field.name for field in fields(Missions)] if self.moves else ["mission", "episode", "tick"]
        return {
            "seed": self.seed,
            "made": self.moves,
            "missions": {name: getattr(self.missions, name).clone() for name in names},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the missions and the seed from a state of `state_dict`; `observe` then returns the observations.

        Raises:
            ConfigError: The state belongs to another number of missions or to other settings of the world.
        """
        for name, saved in state["missions"].items():
            tensor = getattr(self.missions, name)
            if saved.shape != tensor.shape:
                raise ConfigError(
                    f"{name!r} in the saved state of UavEnv has the shape {tuple(saved.shape)}, expected "
                    f"{tuple(tensor.shape)}. Resume with the same options of world and the same number of missions."
                )
            tensor.copy_(saved)
        self.seed, self.moves, self._f1 = int(state["seed"]), int(state["made"]), None
        self._pending.clear()
        if not self.moves:
            self.missions.tick.sub_(1)
            self.missions.episode.sub_(1)
            self._begin()

    def worker_statistics(self) -> dict[str, Any]:
        """Returns an empty dict, because no worker processes simulate these missions."""
        return {}

    def close(self) -> None:
        """Does nothing, because the environment holds no external resources."""

    def _write(self, obs: Tree) -> Tree:
        """Writes the current observations to the buffers `obs`, and returns `obs`."""
        position = self.missions.position
        self._run("write", self.moves, obs["maps"], obs["state"])
        torch.add(position[:, :, 0] * LATTICE, position[:, :, 1], out=obs["cell"])
        return obs

    def _current_f1(self) -> Tensor:
        """Returns the metric ``f1`` (N,) of the current maps, and keeps it for the reward of the next move."""
        if self._f1 is None:
            self._f1 = self.score()["f1"]
        return self._f1

    def _begin(self) -> None:
        """Starts a new mission in every row, with new hidden maps unless the user provides the map."""
        self.moves, self._f1 = 0, None
        self._pending.clear()
        self.missions.belief.zero_()
        if self._draws_field:
            rows = zip(self.missions.mission.tolist(), (self.missions.episode + 1).tolist(), strict=True)
            maps = [random_field(self.world.map_cells, self.seed, mission, episode) for mission, episode in rows]
            self.missions.truth.copy_(torch.from_numpy(np.stack(maps)))
        self._run("begin", self.seed, self._draws_split)

    def _run(self, name: str, *arguments: Any) -> None:
        run(name, self.missions, self.tables, self.threads, *arguments)
