"""N games of 3v3 snakes on one device, stepped together, as a vectorised environment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numba
import torch
from torch import Tensor

from powerband.data.types import EnvHalf, EnvSpec, Step, TensorSpec
from powerband.recipes.snakes.env.board import SnakesState
from powerband.recipes.snakes.env.kernels import MoveBuffers, move_boards, restart_all, restart_boards
from powerband.recipes.snakes.env.observations import OBSERVATIONS
from powerband.recipes.snakes.env.rules.game import MAX_STEPS, TEAM
from powerband.recipes.snakes.env.rules.rewards import EPISODE_METRICS, REWARDS


class Opponent(Protocol):
    """Who plays team B of a range of boards."""

    def act(self, env: SnakesEnv, boards: slice) -> Tensor:
        """(n, 3) int64 absolute actions of team B on `boards`; ``env.team_obs(1, boards)`` is what a network sees."""


def make_env_spec(observation: str) -> EnvSpec:
    """What boards with this observation give and take; known without building any, which may compile their rules."""
    return EnvSpec(
        obs=OBSERVATIONS[observation].spec,
        action=TensorSpec((TEAM,), torch.int64),
        num_actions=OBSERVATIONS[observation].num_actions,
        num_agents=TEAM,
        max_episode_steps=MAX_STEPS,
        resume="exact",
        overlappable=False,
    )


class SnakesEnv:
    """3v3 snakes on N boards; rows of the learner are teams, agents are the three snakes of a team.

    Rows 0..N-1 are team A of board 0..N-1, rows N..N+M-1 team B of the first M boards (the mirrored ones, on which the
    learner plays itself). Team B of the others is played by the opponents, in the order given. Games are reset inside
    the batch, so a step is a transition of every row.

    What `recv`, `reset` and `observe` return lies in two sets of buffers used in turn: it is valid until the second of
    these calls after it.
    On CUDA nothing waits for the device, and `Step.final_obs` is therefore always there.

    Where cores are shared, set OMP_WAIT_POLICY=passive or threads=1: idle OpenMP threads spin on the cores they lack.
    """

    halves: tuple[EnvHalf, ...] = ()

    def __init__(
        self,
        num_boards: int,
        *,
        device: torch.device | str = "cpu",
        seed: int = 0,
        observation: str = "features",
        reward: str = "game",
        opponents: Sequence[tuple[float, Opponent]] = (),
        mirrored: float = 1.0,
        threads: int | None = None,
        first_board: int = 0,
        stagger: bool = True,
    ):
        """Builds the boards and starts the first games.

        Args:
            num_boards: N.
            device: Where boards, observations and rewards live.
            seed: 0..2**64 - 1. A game depends on the seed, the board's number and the actions only.
            observation: A name of `OBSERVATIONS`. Actions are relative (0 forward, 1 left, 2 right) with `features`,
                else absolute (0..3 = up, down, left, right).
            reward: `game`; `mixed`: 0.8 own + 0.1 (own team - other team); `shaped`: the guide's, with step 200 as a
                terminal.
            opponents: (share of all boards, opponent) for team B of the boards that are not mirrored.
            mirrored: Share of the boards on which the learner plays both teams; all shares sum to 1.
            threads: CPU threads, by default as many as torch uses.
            first_board: Number of the first board over all ranks.
            stagger: Spread the step counts of the first games over 0..199, so that games do not end in phase. The
                first game of a board is then shorter, and its figures count its part only.

        Raises:
            ValueError: An unknown name, a number out of range, or shares that do not sum to 1.
        """
        self.device = torch.device(device)
        available = numba.config.NUMBA_NUM_THREADS
        self.threads = min(torch.get_num_threads(), available) if threads is None else threads
        shares = [mirrored, *(share for share, _ in opponents)]
        if num_boards < 1:
            raise ValueError(f"num_boards is {num_boards}: give at least 1")
        if observation not in OBSERVATIONS:
            raise ValueError(f"observation {observation!r} is unknown: give one of {', '.join(OBSERVATIONS)}")
        if reward not in REWARDS:
            raise ValueError(f"reward {reward!r} is unknown: give one of {', '.join(REWARDS)}")
        if not 1 <= self.threads <= available:
            raise ValueError(f"threads is {threads}: give 1..{available} (NUMBA_NUM_THREADS raises the limit)")
        if min(shares) < 0 or abs(sum(shares) - 1) > 1e-6:
            raise ValueError(f"shares of mirrored boards and opponents are {shares}: they must be >= 0 and sum to 1")
        if not 0 <= seed < 2**64:
            raise ValueError(f"seed is {seed}: give 0..2**64 - 1")
        edges = [round(sum(shares[: k + 1]) * num_boards) for k in range(len(shares))]
        self.num_boards, self.mirrored = num_boards, edges[0]
        self.num_envs = num_boards + self.mirrored
        self.opponents = [
            (opponent, slice(start, stop))
            for (_, opponent), start, stop in zip(opponents, edges[:-1], edges[1:], strict=True)
            if stop > start
        ]
        self.seed, self.stagger = seed, stagger
        self.state = SnakesState.empty(num_boards, first_board=first_board, device=self.device)
        self._observation = OBSERVATIONS[observation]
        self._relative = self._observation.relative
        self._kind = REWARDS[reward]
        self._num_actions = self._observation.num_actions
        self.spec = make_env_spec(observation)
        self._moves = [MoveBuffers(num_boards, self.num_envs, self.device) for _ in range(2)]
        self._obs = [self.spec.obs.zeros(self.num_envs, device=self.device) for _ in range(2)]
        self._final_obs: list[Tensor | None] = [None, None]
        self._turn = 0
        self._sent: MoveBuffers | None = None
        self.resumed = torch.ones(self.num_envs, dtype=torch.bool, device=self.device)
        self.reset()

    def reset(self, seed: int | None = None) -> Tensor:
        """Starts a new game on every board.

        Args:
            seed: Starts the random streams over from this seed; None goes on with them.

        Returns:
            (N + M, 3, D) float32 observations.
        """
        if seed is not None:
            if not 0 <= seed < 2**64:
                raise ValueError(f"seed is {seed}: give 0..2**64 - 1")
            self.seed = seed
            self.state.tick.zero_()
        self._sent = None
        restart_all(self.state, self._moves[self._turn], seed=self.seed)
        if self.stagger:  # multiples of the golden ratio are spread evenly, however many of them there are
            self.state.step_count.copy_(((self.state.board_id * 2654435769 & 0xFFFFFFFF) * MAX_STEPS) >> 32)
        return self.observe()

    def observe(self) -> Tensor:
        """(N + M, 3, D) float32: observations of the boards as they are, for instance after `load_state_dict`."""
        self._turn = 1 - self._turn
        return self._write(self._obs[self._turn])

    def team_obs(self, team: int, boards: slice) -> Tensor:
        """(n, 3, D) float32: what `team` (0 = A, 1 = B) sees on `boards`, in a fresh tensor."""
        start, stop, _ = boards.indices(self.num_boards)
        out = self.spec.obs.zeros(stop - start, device=self.device)
        self._set_threads()
        self._observation.write(self.state, team, slice(start, stop), out)
        return out

    def send(self, action: Tensor) -> None:
        """Takes the learner's actions, (N + M, 3) int64, and asks the opponents for theirs.

        Raises:
            ValueError: Wrong shape or dtype; on CPU also an action out of range.
            RuntimeError: `send` was called before and not followed by `recv`.
        """
        if self._sent is not None:
            raise RuntimeError("send was called twice: call recv after each send")
        if action.shape != (self.num_envs, TEAM) or action.dtype != torch.int64:
            raise ValueError(
                f"action is {tuple(action.shape)} {action.dtype}: give {(self.num_envs, TEAM)} torch.int64"
            )
        if self.device.type == "cpu":
            low, high = (int(bound) for bound in torch.aminmax(action))
            if low < 0 or high >= self._num_actions:
                raise ValueError(f"actions reach from {low} to {high}: give 0..{self._num_actions - 1}")
        moves = self._moves[1 - self._turn]  # those of the last step stay as they are
        moves.action.copy_(action)
        self._set_threads()
        for opponent, boards in self.opponents:
            moves.actions[boards, TEAM:] = opponent.act(self, boards)
        self._sent = moves

    def recv(self) -> Step:
        """Makes the move that was sent.

        Returns:
            Step with reward (N + M, 3) and, where an episode ended, the figures score and opponent_score (team totals
            in the game reward), win, draw and loss (0 or 1).

        Raises:
            RuntimeError: `send` was not called before.
        """
        moves, self._sent = self._sent, None
        if moves is None:
            raise RuntimeError("recv was called without send")
        self._turn = turn = 1 - self._turn
        obs = self._obs[turn]
        ended = move_boards(
            self.state,
            moves,
            mirrored=self.mirrored,
            relative=self._relative,
            seed=self.seed,
            kind=self._kind,
            threads=self.threads,
        )
        self._write(obs)
        final_obs = None
        if ended != 0:
            if self._final_obs[turn] is None:
                self._final_obs[turn] = torch.zeros_like(obs)
            final_obs = self._final_obs[turn]
            self._keep_ended(final_obs, obs, moves)
            restart_boards(self.state, moves, seed=self.seed)
            self._write(obs, moves.outcome != 0)
        return Step(
            obs=obs,
            reward=moves.reward,
            terminated=moves.terminated,
            truncated=moves.truncated,
            final_obs=final_obs,
            episode=dict(zip(EPISODE_METRICS, moves.figures, strict=True)),
        )

    def step(self, action: Tensor) -> Step:
        """`send`, then `recv`."""
        self.send(action)
        return self.recv()

    def state_dict(self) -> dict[str, Any]:
        """The boards and the seed; a resumed environment goes on with the same bits.

        Raises:
            RuntimeError: Between `send` and `recv`.
        """
        if self._sent is not None:
            raise RuntimeError("state_dict between send and recv: call recv first")
        return {"seed": self.seed, **self.state.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Sets boards and seed; `observe` gives the observations that go with them."""
        self.state.load_state_dict(state)
        self.seed = int(state["seed"])
        self._sent = None

    def worker_statistics(self) -> dict[str, Any]:
        """No measurements: the environments step in this process."""
        return {}

    def close(self) -> None:
        """Nothing to close."""

    def _set_threads(self) -> None:
        if self.device.type == "cpu":
            numba.set_num_threads(self.threads)

    def _write(self, obs: Tensor, ended: Tensor | None = None) -> Tensor:
        """Writes the observations of all rows into `obs`, or of the rows of boards with `ended` (N,) bool only."""
        self._set_threads()
        n, m = self.num_boards, self.mirrored
        self._observation.write(self.state, 0, slice(0, n), obs[:n], ended)
        if m:
            self._observation.write(self.state, 1, slice(0, m), obs[n:], None if ended is None else ended[:m])
        return obs

    def _keep_ended(self, final_obs: Tensor, obs: Tensor, moves: MoveBuffers) -> None:
        """Copies `obs` to `final_obs` where a game ended; on CUDA everywhere, which is cheaper than finding out."""
        if self.device.type == "cpu":
            rows = (moves.terminated | moves.truncated).nonzero().squeeze(1)
            final_obs[rows] = obs[rows]
        else:
            final_obs.copy_(obs)
