"""N agents on one device, each with a sketch of the building it is in, as a vectorised environment."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

import numba
import torch
from torch import Tensor

from powerband.data.types import EnvSpec, Step, TensorSpec, Tree, tree_map
from powerband.envs.arrays import check_action

from .episodes import HEADINGS, UNIT_M, Episodes
from .explored import Explored
from .kernels import run
from .sensors import Sensors, sensor_arrays
from .state import Agents
from .world import FAR_M, NEAR_M, NUM_ACTIONS, SUBSTEP_M, Rules, world_arrays

LEAST_PX, MOST_PX = 16, 512
PLAIN, EXACT = Rules(), Sensors()
DEPTH_SCALE = 255 / (FAR_M - NEAR_M)
DEPTH_OFFSET = 0.5 - NEAR_M * DEPTH_SCALE


def spec_of(pixels: int, rules: Rules, explored: int = 0, expert: bool = False) -> EnvSpec:
    """What agents see and do; known without any episodes. `explored` is G of the map that is kept, 0 for none; with
    `expert` they are told what the follower does.

    Raises:
        ValueError: A size of the picture out of range.
    """
    if not LEAST_PX <= pixels <= MOST_PX or pixels % 2:
        raise ValueError(f"pixels={pixels}: give an even number from {LEAST_PX} to {MOST_PX}.")
    if explored < 0 or explored % 2:
        raise ValueError(f"explored={explored}: give an even number of squares, or 0 for no map.")
    kept = {"explored": TensorSpec((1, explored, explored), torch.uint8), "goal": TensorSpec((2,))} if explored else {}
    kept |= {"expert": TensorSpec((), torch.int64)} if expert else {}
    return EnvSpec(
        obs={
            "rgb": TensorSpec((3, pixels, pixels), torch.uint8),
            "depth": TensorSpec((1, pixels, pixels), torch.uint8),
            "gps": TensorSpec((2,)),
            "compass": TensorSpec((1,)),
            "episode": TensorSpec((), torch.int64),
            **kept,
        },
        action=TensorSpec((), torch.int64),
        num_actions=NUM_ACTIONS,
        max_episode_steps=rules.max_steps,
        resume="exact",
        overlappable=False,
    )


class SketchNavEnv:
    """Agents that look for the goal of a sketch; actions are STOP, FORWARD, LEFT (10 degrees), RIGHT.

    Observations: ``rgb`` (N, 3, S, S) uint8; ``depth`` (N, 1, S, S) uint8, 0 at 0.5 m or nearer and 255 at 5 m or
    farther; ``gps`` (N, 2) float32, metres from the start along the plan's axes (x right, y down); ``compass`` (N, 1)
    float32, heading in radians, clockwise from the x axis, -pi to pi; ``episode`` (N,) int64, the number of the
    episode, whose sketch is ``episodes.sketch[number]``: it does not change while an episode lasts, so that it need not
    be copied at each step. With `expert`, ``expert`` (N,) int64: what the follower of the shortest way does here.

    The reward is -0.01 + 3 (D_before - D) + 10 on success, D = 0.8 of what remains of the shortest way + 0.2 of the
    distance to it. STOP ends an episode, terminated; so does the limit of actions, truncated. Figures of an episode:
    ``success``; ``spl``, success weighted by the length of the way over that walked; ``soft_spl``, with the share of
    the distance made good for success; ``distance_to_goal``, metres of the way that is left.

    What `recv`, `reset` and `observe` return lies in two sets of buffers used in turn: it is valid until the second of
    these calls after it.
    """

    def __init__(
        self,
        num_envs: int,
        episodes: Episodes,
        rules: Rules = PLAIN,
        *,
        pixels: int = 64,
        explored: int = 0,
        expert: bool = False,
        in_turns: bool = False,
        order: Tensor | None = None,
        device: torch.device | str = "cpu",
        seed: int = 0,
        threads: int | None = None,
        first_env: int = 0,
        all_envs: int = 0,
        sensors: Sensors = EXACT,
    ):
        """Begins an episode in each row.

        Args:
            num_envs: N.
            episodes: What is drawn from, on any device.
            rules: Of success, moves and reward.
            pixels: S, along the camera's picture.
            explored: G, squares along the map of what was seen; 0 keeps none.
            expert: Show what the follower does.
            in_turns: Row n has episodes n, n + all_envs, ... one after the other; else each row draws its own.
            order: (E',) int64 numbers of those that are walked, in their order; None is all.
            device: Where agents and pictures live.
            seed: 0..2**63 - 1. What a row does depends on the seed, its number and the actions only.
            threads: CPU threads, by default as many as torch uses.
            first_env: Number of the first row over all ranks.
            all_envs: Rows of all ranks; 0 is num_envs.
            sensors: Light, and noise of what is observed.

        Raises:
            ValueError: A number out of range.
        """
        if num_envs < 1:
            raise ValueError(f"num_envs is {num_envs}: give at least 1")
        self.num_envs, self.device = num_envs, torch.device(device)
        self.threads = torch.get_num_threads() if threads is None else threads
        if not 1 <= self.threads <= numba.config.NUMBA_NUM_THREADS:
            raise ValueError(f"threads is {self.threads}: give 1..{numba.config.NUMBA_NUM_THREADS}")
        self.seed, self.rules, self.sensors = seed, rules, sensors
        self.spec = spec_of(pixels, rules, explored, expert)
        self.stride = all_envs or num_envs
        self.episodes = episodes.to(self.device)
        self.world = world_arrays(self.episodes, rules, pixels, in_turns, self.device, order, sensors.shading)
        self._errors = sensor_arrays(sensors, self.device)
        self.agents = Agents.empty(num_envs, first_env, self.device)
        self.explored = Explored(num_envs, explored, pixels, self.device) if explored else None
        self._obs = [tree_map(lambda spec: spec.zeros(num_envs, device=self.device), self.spec.obs) for _ in range(2)]
        noisy = self._obs[0]["depth"].shape if sensors.depth_noise else (0,)
        self._metres = torch.zeros(noisy, device=self.device)
        self._turn = 0
        self._sent: Tensor | None = None
        self.resumed = torch.ones(num_envs, dtype=torch.bool, device=self.device)
        self.reset(seed)

    def reset(self, seed: int | None = None) -> Tree:
        """Begins new episodes in all rows.

        Args:
            seed: Starts the draws over from this seed; None goes on with them.

        Returns:
            Observations.
        """
        if seed is not None:
            if not 0 <= seed < 2**63:
                raise ValueError(f"seed is {seed}: give 0..2**63 - 1")
            self.seed = seed
            self.agents.tick.zero_()
        self._sent = None
        self._run("begin", self.seed, self.stride, False)
        return self.observe()

    def observe(self) -> Tree:
        """What the agents see now, for instance after `load_state_dict`."""
        self._turn = 1 - self._turn
        return self._see(self._obs[self._turn], False)

    def expert(self) -> Tensor:
        """(N,) int64: what the follower of the shortest way does now."""
        self._run("expert")
        return self.agents.expert.clone()

    def view_m(self) -> tuple[Tensor, Tensor]:
        """What the agents see now as colours (N, 3, S, S) uint8 and depth (N, 1, S, S) float32 in metres, not cut,
        without noise."""
        rgb = torch.empty_like(self._obs[0]["rgb"])
        depth = torch.empty(self._obs[0]["depth"].shape, device=self.device)
        self._run("see", rgb, depth, 1.0, 0.0, 1e9, False)
        return rgb, depth

    def send(self, action: Tensor) -> None:
        """Takes the actions, (N,) int64.

        Raises:
            ValueError: Wrong shape or dtype; on CPU also an action out of range.
            RuntimeError: `send` was called before and not followed by `recv`.
        """
        if self._sent is not None:
            raise RuntimeError("send was called twice: call recv after each send")
        check_action(action, (self.num_envs,), NUM_ACTIONS)
        self._sent = action.contiguous()

    def recv(self) -> Step:
        """Does what was sent.

        Raises:
            RuntimeError: `send` was not called before.
        """
        action, self._sent = self._sent, None
        if action is None:
            raise RuntimeError("recv was called without send")
        self.move(action)
        agents, final_obs, figures = self.agents, None, {}
        reward, over = agents.reward.clone(), agents.ended.clone()
        if bool(over.any()):
            final_obs = self._see(tree_map(torch.empty_like, self._obs[0]), True)
            figures = self.figures()
            self._run("begin", self.seed, self.stride, True)
        return Step(
            obs=self.observe(),
            reward=reward,
            terminated=over == 1,
            truncated=over == 2,
            final_obs=final_obs,
            episode=figures,
        )

    def move(self, action: Tensor) -> None:
        """Does (N,) int64 and draws nothing: rewards and ends are in `agents`, and no new episode is begun."""
        self._run("step", action)

    def step(self, action: Tensor) -> Step:
        """`send`, then `recv`."""
        self.send(action)
        return self.recv()

    def figures(self) -> dict[str, Tensor]:
        """What the episodes are worth as they stand, (N,) float32 each."""
        agents = self.agents
        length, walked = self.episodes.length[agents.episode], agents.moved * SUBSTEP_M
        direct, success = length / torch.maximum(length, walked), agents.success.double()
        made_good = (1 - agents.distance / length).clamp(min=0)
        found = {
            "success": success,
            "spl": success * direct,
            "soft_spl": made_good * direct,
            "distance_to_goal": agents.distance,
        }
        return {name: value.float() for name, value in found.items()}

    def state_dict(self) -> dict[str, Any]:
        """Agents and seed; a resumed environment goes on with the same bits, given the same episodes.

        Raises:
            RuntimeError: Between `send` and `recv`.
        """
        if self._sent is not None:
            raise RuntimeError("state_dict between send and recv: call recv first")
        agents = {field.name: getattr(self.agents, field.name).clone() for field in fields(Agents)}
        maps = {} if self.explored is None else {"explored": self.explored.maps.clone()}
        return {"seed": self.seed, "episodes": len(self.episodes), "agents": agents, **maps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Sets agents and seed; `observe` gives the observations that go with them.

        Raises:
            ValueError: The state is of other sizes.
        """
        found = (state["agents"]["heading"].shape[0], int(state["episodes"]))
        if found != (self.num_envs, len(self.episodes)):
            raise ValueError(
                f"sketchnav state of {found[0]} rows and {found[1]} episodes, expected {self.num_envs} and "
                f"{len(self.episodes)}; resume with the same scenes and number of environments"
            )
        for name, saved in state["agents"].items():
            getattr(self.agents, name).copy_(saved)
        if self.explored is not None:
            self.explored.maps.copy_(state["explored"])
        self.seed, self._sent = int(state["seed"]), None

    def close(self) -> None:
        """Nothing to close."""

    def blur(self, rgb: Tensor, depth: Tensor, metres: Tensor, ended_only: bool = False) -> None:
        """Adds the noise of this step to colours (N, 3, S, S) uint8, and reads depth (N, 1, S, S) uint8 from `metres`
        (N, 1, S, S) float32 with its noise; what has none is left alone. S is that of the pictures."""
        if self.sensors.depth_noise:
            self._run("depths", self._errors, self.seed, metres, depth, DEPTH_SCALE, DEPTH_OFFSET, ended_only)
        if self.sensors.rgb_noise:
            self._run("colours", self._errors, self.seed, rgb, ended_only)

    def _see(self, obs: Tree, ended_only: bool) -> Tree:
        """Writes what the agents see into `obs`; pictures of rows that ended only, where said."""
        agents = self.agents
        if self.sensors.depth_noise:
            self._run("see", obs["rgb"], self._metres, 1.0, 0.0, 1e9, ended_only)
        else:
            self._run("see", obs["rgb"], obs["depth"], DEPTH_SCALE, DEPTH_OFFSET, 255.0, ended_only)
        self.blur(obs["rgb"], obs["depth"], self._metres, ended_only)
        start = self.episodes.start[agents.episode, :2]
        torch.mul(agents.at - start, UNIT_M, out=obs["gps"])
        turned = (agents.heading + HEADINGS // 2) % HEADINGS - HEADINGS // 2
        torch.mul(turned.unsqueeze(1), 2 * math.pi / HEADINGS, out=obs["compass"])
        if self.sensors.pose:
            self._run("pose", self._errors, self.seed, obs["gps"], obs["compass"])
        obs["episode"].copy_(agents.episode)
        if "expert" in obs:
            obs["expert"].copy_(self.expert())
        if self.explored is not None:
            seen = (obs["depth"], obs["gps"], obs["compass"])
            if ended_only:  # the last of an episode: its map begins anew with the next
                maps = self.explored.with_view(self.explored.maps, *seen)
            else:
                maps = self.explored.add(*seen, agents.made == 0)
            obs["explored"].copy_(maps.unsqueeze(1))
            torch.mul(
                self.episodes.target[agents.episode] - self.episodes.start[agents.episode, :2], UNIT_M, out=obs["goal"]
            )
        return obs

    def _run(self, name: str, *arguments: Any) -> None:
        run(name, self.agents, self.world, self.threads, *arguments)
