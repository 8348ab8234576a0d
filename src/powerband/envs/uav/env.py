"""N missions on one device, flown together, as a vectorised environment."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from powerband.data.types import EnvSpec, Step, TensorSpec, Tree, tree_map
from powerband.envs.arrays import check_action

from .features import TEAM_MAPS, UAV_MAPS
from .kernels import run
from .score import figures_of
from .state import Missions
from .truth import random_field
from .world import LATTICE, NUM_ACTIONS, World

REWARD_SCALE, REWARD_OFFSET = 22.0, 0.5


def spec_of(world: World) -> EnvSpec:
    """What missions give and take; known without building any, which may compile their rules."""
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
    """Missions of a team of UAVs; rows are missions, agents are UAVs.

    The reward of a move is 22 rho - 0.5, the same for all UAVs of a team, with rho = mean(W (H_before - H_after)) /
    mean(W H_before) over the map of all measurements; H_after and W are of the map after the move's measurements. A
    mission begins with a measurement at the start and ends, terminated, after budget + 1 moves; all missions begin and
    end together. A move out of the lattice leaves a UAV where it is; `masked_sample` never chooses one.

    Observations: ``maps`` (N, A, 7, 11, 11) and ``state`` (N, 4, 11, 11) as in `features`, ``cell`` (N, A) int64 the
    x-y cell (11 x + y) of each UAV. Figures of a mission, of the map of all measurements: ``f1``, ``roi_entropy`` in
    bits.

    What `recv`, `reset` and `observe` return lies in two sets of buffers used in turn: it is valid until the second of
    these calls after it.
    """

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
        """Builds the missions and starts the first ones.

        Args:
            num_envs: N.
            world: What all missions share.
            device: Where maps, observations and rewards live.
            seed: 0..2**63 - 1. A mission depends on the seed, its number and the actions only.
            threads: CPU threads, by default as many as torch uses.
            first_env: Number of the first mission over all ranks.

        Raises:
            ValueError: A number out of range, or a map file that does not fit.
        """
        if num_envs < 1:
            raise ValueError(f"num_envs is {num_envs}: give at least 1")
        self.num_envs, self.world, self.device = num_envs, world, torch.device(device)
        self.threads = torch.get_num_threads() if threads is None else threads
        if not 1 <= self.threads <= numba.config.NUMBA_NUM_THREADS:
            raise ValueError(f"threads is {self.threads}: give 1..{numba.config.NUMBA_NUM_THREADS}")
        self.seed, self.spec = seed, spec_of(world)
        self.tables = world.arrays(self.device)
        self.missions = Missions.empty(num_envs, world, first_env, self.device)
        own = world.own_map()
        if own is not None:
            self.missions.truth.copy_(torch.from_numpy(own).to(self.device).expand_as(self.missions.truth))
        self._drawn = own is None and world.truth == "split"
        self._field = own is None and world.truth == "field"
        self._obs = [tree_map(lambda spec: spec.zeros(num_envs, device=self.device), self.spec.obs) for _ in range(2)]
        self._turn = 0
        self._sent: Tensor | None = None
        self.made = 0  # moves of the missions under way
        self.resumed = torch.ones(num_envs, dtype=torch.bool, device=self.device)
        self.reset(seed)

    def reset(self, seed: int | None = None) -> Tree:
        """Begins new missions.

        Args:
            seed: Starts the random streams over from this seed; None goes on with them.

        Returns:
            Observations.
        """
        if seed is not None:
            if not 0 <= seed < 2**63:
                raise ValueError(f"seed is {seed}: give 0..2**63 - 1")
            self.seed = seed
            self.missions.tick.zero_()
            self.missions.episode.zero_()
        self._begin()
        return self.observe()

    def observe(self) -> Tree:
        """What the UAVs see now, for instance after `load_state_dict`."""
        self._turn = 1 - self._turn
        return self._write(self._obs[self._turn])

    def masked_sample(self, probability: Tensor, noise: Tensor | None) -> tuple[Tensor, Tensor]:
        """Chooses moves for all UAVs, one after the other within a team: each avoids the cells that are taken.

        Masked are moves out of the lattice, and the x-y cell where a UAV chosen before will be, unless that is the last
        move left.

        Args:
            probability: (N, A, 6) float32 of all moves, not masked.
            noise: (N, A) float32 in [0, 1) to draw with; None takes the likeliest.

        Returns:
            Moves (N, A) int64, and which moves were allowed (N, A, 6) bool.
        """
        n, agents = self.num_envs, self.world.n_agents
        chosen = torch.zeros(n, agents, dtype=torch.int64, device=self.device)
        mask = torch.zeros(n, agents, NUM_ACTIONS, dtype=torch.bool, device=self.device)
        drawn = torch.zeros(n, agents, device=self.device) if noise is None else noise.contiguous()
        self._run("choose", probability.contiguous(), drawn, noise is not None, chosen, mask)
        return chosen, mask

    def send(self, action: Tensor) -> None:
        """Takes the moves, (N, A) int64.

        Raises:
            ValueError: Wrong shape or dtype; on CPU also a move out of range.
            RuntimeError: `send` was called before and not followed by `recv`.
        """
        if self._sent is not None:
            raise RuntimeError("send was called twice: call recv after each send")
        check_action(action, (self.num_envs, self.world.n_agents), NUM_ACTIONS)
        self._sent = action.contiguous()

    def recv(self) -> Step:
        """Makes the moves that were sent.

        Raises:
            RuntimeError: `send` was not called before.
        """
        action, self._sent = self._sent, None
        if action is None:
            raise RuntimeError("recv was called without send")
        self._run("step", self.seed, action)
        self.made += 1
        gained, weighed = self.missions.gain.double().unbind(1)
        reward = (REWARD_SCALE * gained / weighed.clamp(min=1) - REWARD_OFFSET).float()
        over = self.made == self.world.num_steps
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
        """`send`, then `recv`."""
        self.send(action)
        return self.recv()

    def score(self, uav: int | None = None) -> dict[str, Tensor]:
        """F1 and entropy over the region of interest, (N,) float32 each, of the map as it is.

        Args:
            uav: Whose map; None is that of all measurements.
        """
        counts = torch.zeros(self.num_envs, 4, dtype=torch.int64, device=self.device)
        self._run("count", self.world.n_agents if uav is None else uav, counts)
        return figures_of(counts)

    def state_dict(self) -> dict[str, Any]:
        """The missions and the seed; a resumed environment goes on with the same bits.

        Missions that have just begun follow from the seed and their counters, and only those are saved.

        Raises:
            RuntimeError: Between `send` and `recv`.
        """
        if self._sent is not None:
            raise RuntimeError("state_dict between send and recv: call recv first")
        names = [field.name for field in fields(Missions)] if self.made else ["mission", "episode", "tick"]
        return {
            "seed": self.seed,
            "made": self.made,
            "missions": {name: getattr(self.missions, name).clone() for name in names},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Sets missions and seed; `observe` gives the observations that go with them.

        Raises:
            ValueError: The state is of other sizes.
        """
        for name, saved in state["missions"].items():
            own = getattr(self.missions, name)
            if saved.shape != own.shape:
                raise ValueError(
                    f"uav state {name!r}: expected shape {tuple(own.shape)}, found {tuple(saved.shape)}; resume with "
                    f"the same world and number of missions"
                )
            own.copy_(saved)
        self.seed, self.made, self._sent = int(state["seed"]), int(state["made"]), None
        if not self.made:
            self.missions.tick.sub_(1)
            self.missions.episode.sub_(1)
            self._begin()

    def close(self) -> None:
        """Nothing to close."""

    def _write(self, obs: Tree) -> Tree:
        """Writes what the UAVs see now into `obs`."""
        at = self.missions.position
        self._run("write", self.made, obs["maps"], obs["state"])
        torch.add(at[:, :, 0] * LATTICE, at[:, :, 1], out=obs["cell"])
        return obs

    def _begin(self) -> None:
        """Begins new missions on all rows."""
        self.made, self._sent = 0, None
        self.missions.belief.zero_()
        if self._field:
            rows = zip(self.missions.mission.tolist(), (self.missions.episode + 1).tolist(), strict=True)
            drawn = [random_field(self.world.map_cells, self.seed, mission, episode) for mission, episode in rows]
            self.missions.truth.copy_(torch.from_numpy(np.stack(drawn)))
        self._run("begin", self.seed, self._drawn)

    def _run(self, name: str, *arguments: Any) -> None:
        run(name, self.missions, self.tables, self.threads, *arguments)
