"""SketchNavEnv: a vectorised environment of N agents, each with a sketch of the building that it navigates."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

import numba
import torch
from torch import Tensor

from powerband.core.errors import ConfigError
from powerband.data.types import EnvHalf, Step, Tree, tree_map
from powerband.envs.numba.arrays import check_action
from powerband.envs.numba.pending_action import PendingAction
from powerband.recipes.sketchnav.env.explored_map import ExploredMap
from powerband.recipes.sketchnav.env.kernels import run
from powerband.recipes.sketchnav.env.sensors import sensor_arrays
from powerband.recipes.sketchnav.env.spec import make_env_spec
from powerband.recipes.sketchnav.env.state import Agents
from powerband.recipes.sketchnav.env.world import FAR_M, NEAR_M, NUM_ACTIONS, world_arrays
from powerband.recipes.sketchnav.plans.episodes.episodes import COORDINATE_UNIT_M, HEADINGS, Episodes
from powerband.recipes.sketchnav.settings import SUBSTEP_M, Rules, Sensors

DEFAULT_RULES, NOISELESS = Rules(), Sensors()
DEPTH_SCALE = 255 / (FAR_M - NEAR_M)
DEPTH_OFFSET = 0.5 - NEAR_M * DEPTH_SCALE
"""A depth z in metres is the byte DEPTH_SCALE z + DEPTH_OFFSET, within 0 to 255."""
UNLIMITED_M = 1e9
"""Upper limit of a depth in metres that is not clipped."""


class SketchNavEnv:
    """N agents that navigate to the goal on a sketch. The actions are STOP, FORWARD, LEFT (10 degrees) and RIGHT.

    Observations, with camera images of S x S pixels:

    - ``rgb`` (N, 3, S, S) uint8: colours
    - ``depth`` (N, 1, S, S) uint8: 0 at 0.5 m or nearer and 255 at 5 m or farther
    - ``gps`` (N, 2) float32: metres from the start along the axes of the plan (x right, y down)
    - ``compass`` (N, 1) float32: heading in radians, clockwise from the x axis, -pi to pi
    - ``episode`` (N,) int64: number of the episode. Its sketch is ``episodes.sketch[number]``. The observation has only
      the number, because the sketch does not change during an episode.
    - ``explored`` (N, 1, G, G) uint8, if `explored` is not 0: map of G x G squares with the start in the centre; 0 is
      unseen, 127 is free, 255 is occupied
    - ``goal`` (N, 2) float32, with `goal`: position of the goal, in metres as ``gps``
    - ``expert`` (N,) int64, with `expert`: action of an expert that follows the shortest path

    The reward is -0.01 + 3 (D_before - D) + 10 on success; D = 0.8 of the remaining path + 0.2 of the distance to the
    path, in metres. STOP terminates an episode; the limit of actions truncates it.

    Metrics of an episode: ``success``, 1 if the agent stopped near the goal; ``spl``, success weighted by the path
    length over the distance moved; ``soft_spl``, with the share of the path that was completed in place of success;
    ``distance_to_goal``, metres of the remaining path.

    `recv`, `reset` and `observe` write to two sets of buffers in alternation. The observations that the last two of
    these calls returned are valid; older observations are overwritten.
    """

    halves: tuple[EnvHalf, ...] = ()

    def __init__(
        self,
        num_envs: int,
        episodes: Episodes,
        rules: Rules = DEFAULT_RULES,
        *,
        pixels: int = 64,
        explored: int = 0,
        expert: bool = False,
        goal: bool = False,
        sequential: bool = False,
        order: Tensor | None = None,
        device: torch.device | str = "cpu",
        seed: int = 0,
        threads: int | None = None,
        first_env: int = 0,
        all_envs: int = 0,
        sensors: Sensors = NOISELESS,
    ):
        """Begins an episode for each agent; an agent and its entries in tensors are called a row.

        Args:
            num_envs: N, number of agents (rows).
            episodes: Episodes on any device.
            rules: Rules of success, moves and reward.
            pixels: S, side of the camera image.
            explored: G, squares along one side of the explored map; 0 for no map.
            expert: True adds ``expert`` to observations, the action of an expert that follows the shortest path.
            goal: True adds ``goal`` to observations, the true position of the goal.
            sequential: Row n plays episodes n, n + all_envs, ... in order; otherwise each row draws its episodes.
            order: Numbers (E',) int64 of the E' episodes to play, in this order; None plays all.
            device: Device of agents and images.
            seed: Seed, 0..2**63 - 1. A row depends on the seed, its number and its actions only.
            threads: CPU threads; None uses torch's number of threads.
            first_env: Number of the first row over all ranks.
            all_envs: Number of rows over all ranks; 0 means num_envs.
            sensors: Light and sensor noise.

        Raises:
            ConfigError: A number is out of range.
        """
        if num_envs < 1:
            raise ConfigError(f"num_envs is {num_envs}; SketchNavEnv needs at least 1 agent. Pass num_envs=1 or more.")
        self.num_envs, self.device = num_envs, torch.device(device)
        self.threads = torch.get_num_threads() if threads is None else threads
        limit = numba.config.NUMBA_NUM_THREADS  # type: ignore[attr-defined]
        if not 1 <= self.threads <= limit:
            raise ConfigError(f"threads is {self.threads}; numba supports 1 to {limit}. Pass a number in this range.")
        self.seed, self.rules, self.sensors = seed, rules, sensors
        self.spec = make_env_spec(pixels, rules, explored, expert, goal)
        self.stride = all_envs or num_envs
        self.episodes = episodes.to(self.device)
        self.world = world_arrays(self.episodes, rules, pixels, sequential, self.device, order, sensors.shading)
        self._sensor_arrays = sensor_arrays(sensors, self.device)
        self.agents = Agents.empty(num_envs, first_env, self.device)
        self.explored = ExploredMap(num_envs, explored, pixels, self.device) if explored else None
        self._obs = [tree_map(lambda spec: spec.zeros(num_envs, device=self.device), self.spec.obs) for _ in range(2)]
        noisy = self._obs[0]["depth"].shape if sensors.depth_noise else (0,)
        self._metres = torch.zeros(noisy, device=self.device)
        self._buffer = 0
        self._pending: PendingAction[Tensor] = PendingAction()
        self.resumed = torch.ones(num_envs, dtype=torch.bool, device=self.device)
        self.reset(seed)

    def reset(self, seed: int | None = None) -> Tree:
        """Begins new episodes for all agents and returns the observations.

        Args:
            seed: Restarts the random streams with this seed; None continues them.
        """
        if seed is not None:
            if not 0 <= seed < 2**63:
                raise ConfigError(f"seed is {seed}; a seed must be 0 to 2**63 - 1. Pass a seed in this range.")
            self.seed = seed
            self.agents.tick.zero_()
        self._pending.clear()
        self._run("begin", self.seed, self.stride, False)
        return self.observe()

    def observe(self) -> Tree:
        """Returns the present observations, for instance after `load_state_dict`."""
        self._buffer = 1 - self._buffer
        return self._write_obs(self._obs[self._buffer], False)

    def expert(self) -> Tensor:
        """Returns the actions (N,) int64 with which N agents would follow their shortest paths now."""
        self._run("expert")
        return self.agents.expert.clone()

    def render_metric(self) -> tuple[Tensor, Tensor]:
        """Renders without noise. Returns colours (N, 3, S, S) uint8 and unclipped depth (N, 1, S, S) in metres."""
        rgb = torch.empty_like(self._obs[0]["rgb"])
        depth = torch.empty(self._obs[0]["depth"].shape, device=self.device)
        self._run("render", rgb, depth, 1.0, 0.0, UNLIMITED_M, False)
        return rgb, depth

    def send(self, action: Tensor) -> None:
        """Accepts the actions (N,) int64 of all N agents; `recv` executes them.

        Raises:
            ConfigError: The shape or dtype is wrong, or, on CPU, an action is out of range.
            RuntimeError: An earlier action was not followed by `recv`.
        """
        self._pending.check_none("send")
        check_action(action, (self.num_envs,), NUM_ACTIONS)
        self._pending.put(action.contiguous())

    def recv(self) -> Step:
        """Executes the pending actions and returns the step; agents whose episode ended begin the next episode.

        Raises:
            RuntimeError: `send` was not called before.
        """
        self.move(self._pending.take())
        agents, final_obs, episode_metrics = self.agents, None, {}
        reward, ended = agents.reward.clone(), agents.ended.clone()
        if bool(ended.any()):
            final_obs = self._write_obs(tree_map(torch.empty_like, self._obs[0]), True)
            episode_metrics = self.episode_metrics()
            self._run("begin", self.seed, self.stride, True)
        return Step(
            obs=self.observe(),
            reward=reward,
            terminated=ended == 1,
            truncated=ended == 2,
            final_obs=final_obs,
            episode=episode_metrics,
        )

    def move(self, action: Tensor) -> None:
        """Executes actions (N,) int64 without rendering; no new episode begins.

        The attribute ``agents`` then has the rewards and the ends of episodes.
        """
        self._run("step", action)

    def step(self, action: Tensor) -> Step:
        """Calls `send`, then `recv`."""
        self.send(action)
        return self.recv()

    def episode_metrics(self) -> dict[str, Tensor]:
        """Returns the metrics of the current episodes: name -> (N,) float32.

        The names are ``success``, ``spl``, ``soft_spl`` and ``distance_to_goal``; the class docstring explains them.
        """
        agents = self.agents
        length, moved = self.episodes.length[agents.episode], agents.moved * SUBSTEP_M
        direct, success = length / torch.maximum(length, moved), agents.success.double()
        completed = (1 - agents.distance / length).clamp(min=0)
        metrics = {
            "success": success,
            "spl": success * direct,
            "soft_spl": completed * direct,
            "distance_to_goal": agents.distance,
        }
        return {name: value.float() for name, value in metrics.items()}

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of all agents, from which an environment with the same episodes continues bit for bit.

        Returns:
            ``seed``; ``episodes``, their number; ``agents``, the tensors of `Agents` by name; and ``explored``, the
            explored maps (N, G, G), if the environment has them.

        Raises:
            RuntimeError: An action is pending.
        """
        self._pending.check_none("state_dict")
        agents = {field.name: getattr(self.agents, field.name).clone() for field in fields(Agents)}
        maps = {} if self.explored is None else {"explored": self.explored.maps.clone()}
        return {"seed": self.seed, "episodes": len(self.episodes), "agents": agents, **maps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the state that `state_dict` returned; then `observe` returns the observations of this state.

        Raises:
            ConfigError: The number of agents or of episodes differs from that of the state.
        """
        rows, episodes = state["agents"]["heading"].shape[0], int(state["episodes"])
        if (rows, episodes) != (self.num_envs, len(self.episodes)):
            raise ConfigError(
                f"The state of sketchnav has {rows} rows and {episodes} episodes; expected {self.num_envs} and "
                f"{len(self.episodes)}. Resume with the same scenes and number of environments."
            )
        for name, saved in state["agents"].items():
            getattr(self.agents, name).copy_(saved)
        if self.explored is not None:
            self.explored.maps.copy_(state["explored"])
        self.seed = int(state["seed"])
        self._pending.clear()

    def worker_statistics(self) -> dict[str, Any]:
        """Returns an empty dict, because the environments step in this process, without workers."""
        return {}

    def close(self) -> None:
        """Does nothing, because the environment holds no processes or files."""

    def add_image_noise(self, rgb: Tensor, depth: Tensor, metres: Tensor, ended_only: bool = False) -> None:
        """Adds the noise of this step to images of any side S, in place. Images without noise stay as they are.

        Args:
            rgb: Colours (N, 3, S, S) uint8.
            depth: Depth (N, 1, S, S) uint8; computed from `metres` if depth is noisy.
            metres: Depth (N, 1, S, S) float32 in metres.
            ended_only: Change only the images of agents whose episode ended; otherwise of all agents.
        """
        arrays, seed = self._sensor_arrays, self.seed
        if self.sensors.depth_noise:
            self._run("depth_noise", arrays, seed, metres, depth, DEPTH_SCALE, DEPTH_OFFSET, ended_only)
        if self.sensors.rgb_noise:
            self._run("colour_noise", arrays, seed, rgb, ended_only)

    def _write_obs(self, obs: Tree, ended_only: bool) -> Tree:
        """Writes the present observations into `obs` and returns `obs`.

        With `ended_only`, images are written only for agents whose episode ended.
        """
        agents, episodes = self.agents, self.episodes
        if self.sensors.depth_noise:
            self._run("render", obs["rgb"], self._metres, 1.0, 0.0, UNLIMITED_M, ended_only)
        else:
            self._run("render", obs["rgb"], obs["depth"], DEPTH_SCALE, DEPTH_OFFSET, 255.0, ended_only)
        self.add_image_noise(obs["rgb"], obs["depth"], self._metres, ended_only)
        start = episodes.start[agents.episode, :2]
        torch.mul(agents.at - start, COORDINATE_UNIT_M, out=obs["gps"])
        signed = (agents.heading + HEADINGS // 2) % HEADINGS - HEADINGS // 2
        torch.mul(signed.unsqueeze(1), 2 * math.pi / HEADINGS, out=obs["compass"])
        if self.sensors.pose_noise:
            self._run("pose_noise", self._sensor_arrays, self.seed, obs["gps"], obs["compass"])
        obs["episode"].copy_(agents.episode)
        if "expert" in obs:
            obs["expert"].copy_(self.expert())
        if self.explored is not None:
            view = (obs["depth"], obs["gps"], obs["compass"])
            if ended_only:  # the maps of the next episodes begin empty, so this last view is not kept
                maps = self.explored.with_view(self.explored.maps, *view)
            else:
                maps = self.explored.add(*view, agents.made == 0)
            obs["explored"].copy_(maps.unsqueeze(1))
        if "goal" in obs:
            torch.mul(episodes.target[agents.episode] - start, COORDINATE_UNIT_M, out=obs["goal"])
        return obs

    def _run(self, name: str, *arguments: Any) -> None:
        run(name, self.agents, self.world, self.threads, *arguments)
