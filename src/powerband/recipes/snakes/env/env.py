"""SnakesEnv: vectorised environment of N games of 3v3 snakes on one device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numba
import torch
from torch import Tensor

from powerband.core.errors import ConfigError
from powerband.data.types import EnvHalf, EnvSpec, Step, TensorSpec
from powerband.recipes.snakes.env.board import SnakesState
from powerband.recipes.snakes.env.kernels import MoveBuffers, move_boards, restart_all, restart_boards
from powerband.recipes.snakes.env.observations import OBSERVATIONS
from powerband.recipes.snakes.env.rules.game import MAX_STEPS, TEAM
from powerband.recipes.snakes.env.rules.rewards import EPISODE_METRICS, REWARDS


class Opponent(Protocol):
    """Player of team B on those boards on which the learner plays only team A."""

    def act(self, env: SnakesEnv, boards: slice) -> Tensor:
        """Computes the actions of team B on the n `boards` of `env`, for example from ``env.team_obs(1, boards)``.

        Returns:
            (n, 3) int64, one action per snake. The actions are absolute: 0..3 = up, down, left, right.
        """


def make_env_spec(observation: str) -> EnvSpec:
    """Returns the observation and action spaces of `SnakesEnv` for `observation`, a name in `OBSERVATIONS`.

    It does not build boards, because building them may compile the rules of the game.
    """
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
    """3v3 snakes on N boards. Each row of the batch is a team that the learner plays; its agents are three snakes.

    Rows 0..N-1 are team A of boards 0..N-1. Rows N..N+M-1 are team B of the first M boards, the mirrored ones, on which
    the learner plays against itself. The opponents play team B of the other boards in the given order. A game that ends
    is replaced with a new one in the same step, so a step is a transition of every row.

    `recv`, `reset` and `observe` write to two sets of buffers in alternation. What they return stays valid until the
    second of these calls after it. On CUDA no call synchronises with the device, so `Step.final_obs` is always set.

    On shared cores, set OMP_WAIT_POLICY=passive or threads=1, because idle OpenMP threads occupy cores by spinning.
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
            num_boards: N, number of boards.
            device: Device of boards, observations and rewards.
            seed: Seed, 0..2**64 - 1. A game depends on the seed, the index of the board and the actions only.
            observation: Name in `OBSERVATIONS`. Actions are relative (0 forward, 1 left, 2 right) with `features`,
                otherwise absolute (0..3 = up, down, left, right).
            reward: `game`: change of the length of a snake; `mixed`: 0.8 own + 0.1 (own team - other team) of these
                changes; `shaped`: reward of the public baseline, see `rewards.shaped`, for which step 200 is terminal.
            opponents: Pairs (share of all boards, opponent) for team B of the boards that are not mirrored. A share is
                a number from 0 to 1.
            mirrored: Share of the boards on which the learner plays both teams; all shares sum to 1.
            threads: Number of CPU threads; None uses torch's number of threads.
            first_board: Index of the first board among the boards of all ranks.
            stagger: Spreads the step counts of the first games over 0..199, so that games do not all end together. The
                first game of a board is then shorter, so its scores count fewer moves.

        Raises:
            ConfigError: A name is unknown, a number is out of range, or the shares do not sum to 1.
        """
        self.device = torch.device(device)
        available = numba.config.NUMBA_NUM_THREADS  # type: ignore[attr-defined]  # numba sets it while it is imported
        self.threads = min(torch.get_num_threads(), available) if threads is None else threads
        shares = [mirrored, *(share for share, _ in opponents)]
        if num_boards < 1:
            raise ConfigError(f"num_boards={num_boards} is below 1. Create SnakesEnv with 1 board or more.")
        if observation not in OBSERVATIONS:
            raise ConfigError(f"Unknown observation {observation!r}. Available: {', '.join(OBSERVATIONS)}.")
        if reward not in REWARDS:
            raise ConfigError(f"Unknown reward {reward!r}. Available: {', '.join(REWARDS)}.")
        if not 1 <= self.threads <= available:
            raise ConfigError(
                f"threads={self.threads} is outside 1..{available}, the threads of numba. Pass a number in this range, "
                f"or set the environment variable NUMBA_NUM_THREADS to a higher limit."
            )
        if min(shares) < 0 or abs(sum(shares) - 1) > 1e-6:
            raise ConfigError(
                f"The shares of the boards are {shares}: first those of self-play, in which the policy plays both "
                f"teams, then those against each opponent. Pass shares of 0 or more that sum to 1."
            )
        if not 0 <= seed < 2**64:
            raise ConfigError(f"seed={seed} is outside 0..2**64 - 1. Pass a seed in this range.")
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
            seed: Restarts the random streams from this seed; None continues them.

        Returns:
            Observations (N + M, 3, D) float32 of N boards, M of them mirrored: a row per team that the learner plays,
            D numbers per snake. For the observation planes, the shape is (N + M, 3, 8, 10, 20).

        Raises:
            ConfigError: `seed` is outside 0..2**64 - 1.
        """
        if seed is not None:
            if not 0 <= seed < 2**64:
                raise ConfigError(f"seed={seed} is outside 0..2**64 - 1. Pass a seed in this range.")
            self.seed = seed
            self.state.tick.zero_()
        self._sent = None
        restart_all(self.state, self._moves[self._turn], seed=self.seed)
        if self.stagger:  # multiples of the golden ratio are spread evenly for any number of boards
            self.state.step_count.copy_(((self.state.board_id * 2654435769 & 0xFFFFFFFF) * MAX_STEPS) >> 32)
        return self.observe()

    def observe(self) -> Tensor:
        """Returns the current observations, for example after `load_state_dict`.

        Returns:
            (N + M, 3, D) float32 as from `reset`: a row per team that the learner plays, D numbers per snake.
        """
        self._turn = 1 - self._turn
        return self._write(self._obs[self._turn])

    def team_obs(self, team: int, boards: slice) -> Tensor:
        """Returns the observations of `team` (0 = A, 1 = B) on the n `boards` in a new tensor.

        Returns:
            (n, 3, D) float32, with D numbers per snake.
        """
        start, stop, _ = boards.indices(self.num_boards)
        out = self.spec.obs.zeros(stop - start, device=self.device)
        self._set_threads()
        self._observation.write(self.state, team, slice(start, stop), out)
        return out

    def send(self, action: Tensor) -> None:
        """Stores the actions of the learner, and computes the actions of the opponents. `recv` executes the move.

        Args:
            action: (N + M, 3) int64: one row per team that the learner plays, one action per snake. The constructor's
                argument `observation` determines whether actions are relative or absolute.

        Raises:
            ConfigError: `action` has another shape or dtype, or, on a CPU, a value that is not an action.
            RuntimeError: `send` was called twice without `recv`.
        """
        if self._sent is not None:
            raise RuntimeError("send was called twice. Call recv after each send.")
        if action.shape != (self.num_envs, TEAM) or action.dtype != torch.int64:
            raise ConfigError(
                f"action is {tuple(action.shape)} {action.dtype}. It must be {(self.num_envs, TEAM)} torch.int64."
            )
        if self.device.type == "cpu":
            low, high = (int(bound) for bound in torch.aminmax(action))
            if low < 0 or high >= self._num_actions:
                raise ConfigError(f"Actions range from {low} to {high}. They must be in 0..{self._num_actions - 1}.")
        moves = self._moves[1 - self._turn]  # the buffers of the last step remain valid
        moves.action.copy_(action)
        self._set_threads()
        for opponent, boards in self.opponents:
            moves.actions[boards, TEAM:] = opponent.act(self, boards)
        self._sent = moves

    def recv(self) -> Step:
        """Executes the move that `send` stored, and starts a new game on each board whose game ended.

        Returns:
            The step, with one row per team that the learner plays: N games, and M of them again for the other team.
            The reward (N + M, 3) has one column per snake. `Step.episode` contains the results of games that ended:
            ``score`` and ``opponent_score``, sums of a team's rewards by the rules of the game, and
            ``win``, ``draw`` and ``loss``, which are 0 or 1.

        Raises:
            RuntimeError: `send` was not called.
        """
        moves, self._sent = self._sent, None
        if moves is None:
            raise RuntimeError("recv was called without send. Call send first.")
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
            final_obs = self._final_obs[turn]
            if final_obs is None:
                final_obs = self._final_obs[turn] = torch.zeros_like(obs)
            self._copy_final_obs(final_obs, obs, moves)
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
        """Calls `send`, then `recv`, and returns the step."""
        self.send(action)
        return self.recv()

    def state_dict(self) -> dict[str, Any]:
        """Returns the ``seed`` and the tensors of `SnakesState` by name; a resumed environment continues bit for bit.

        Raises:
            RuntimeError: `recv` was not called after the latest `send`.
        """
        if self._sent is not None:
            raise RuntimeError("state_dict was called between send and recv. Call recv first.")
        return {"seed": self.seed, **self.state.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the boards and the seed from a result of `state_dict`; `observe` then returns the observations.

        Raises:
            ValueError: The state is incomplete or belongs to another number of boards.
        """
        self.state.load_state_dict(state)
        self.seed = int(state["seed"])
        self._sent = None

    def worker_statistics(self) -> dict[str, Any]:
        """Returns an empty dict, because no worker processes simulate these environments."""
        return {}

    def close(self) -> None:
        """Does nothing, because the environment holds no resource that must be released."""

    def _set_threads(self) -> None:
        if self.device.type == "cpu":
            numba.set_num_threads(self.threads)

    def _write(self, obs: Tensor, ended: Tensor | None = None) -> Tensor:
        """Writes the observations of all boards, or of those with `ended` (N,) True, to `obs`, and returns `obs`."""
        self._set_threads()
        n, m = self.num_boards, self.mirrored
        self._observation.write(self.state, 0, slice(0, n), obs[:n], ended)
        if m:
            self._observation.write(self.state, 1, slice(0, m), obs[n:], None if ended is None else ended[:m])
        return obs

    def _copy_final_obs(self, final_obs: Tensor, obs: Tensor, moves: MoveBuffers) -> None:
        """Copies `obs` to `final_obs` for games that ended according to `moves`.

        On CUDA it copies the observations of all games, which avoids a host-device synchronisation.
        """
        if self.device.type == "cpu":
            rows = (moves.terminated | moves.truncated).nonzero().squeeze(1)
            final_obs[rows] = obs[rows]
        else:
            final_obs.copy_(obs)
