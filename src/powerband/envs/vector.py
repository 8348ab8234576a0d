"""WorkerVecEnv: CPU simulators in worker processes, several environments each, stepped by one word a worker.

Actions go and results come through one block of shared memory; a step costs one byte to each worker and one byte
back. Waiting is a blocking read, so a worker that dies is an end of file, never a hang. Supervised, it is started again
and its other environments go on where they were.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from powerband.data.types import ResumeLevel, Step, Tree, tree_paths
from powerband.envs.crew import ALL, Crew
from powerband.envs.group import REPLAY_LIMIT
from powerband.envs.part import Part
from powerband.envs.processes import start, stop
from powerband.envs.slots import Slots, layout
from powerband.envs.spaces import Spaces
from powerband.envs.spec import env_spec
from powerband.envs.supervision import Fault, Record, Supervision

Make = Callable[..., Any] | tuple[Callable[..., Any], dict[str, Any]]


class WorkerVecEnv:
    """Gymnasium environments in worker processes behind the VecEnv protocol.

    Observations keep their tree; floats become float32, uint8 and bool stay, other integers become int64. Continuous
    actions are in the environment's own units and are clipped to ``spec.low .. spec.high``; discrete ones count from 0.
    Episode e of global environment i is reset with ``episode_seed(seed, i, e)``: ranks and workers change nothing.

    Args:
        makes: One function an environment, or (function, keyword arguments); importable from a module by its name.
        num_workers: Worker processes; 0 steps the environments in this process, with the same results.
        device: Where observations, rewards and flags are delivered.
        seed: Seed of the run; `reset` may be handed another.
        first_env: Global index of the first environment (over all ranks).
        figures: Names of `info` values of an episode's last step that are reported in ``Step.episode``.
        resume: "replayed" where environments are deterministic: a resume repeats the actions of the live episodes.
            "truncated": a resume ends them.
        pin: Page-lock the shared memory for CUDA; None does so where `device` is CUDA.
        supervision: Go on where a simulator fails in a step (`Step.lost`); None ends with EnvError.
        tell: With `supervision`, is handed each failure that was recovered from.

    Attributes:
        record: With `supervision`, the failures so far.
        resumed: (N,) bool on the CPU: after `load_state_dict`, the rows whose live episode goes on. In the others
            `observe` gives the first of a new episode.
        halves: The two halves of the workers, each with `rows`, `send` and `recv` of its own, for a loop that steps
            them by turns; () with fewer than two workers.

    Raises:
        ValueError: Sizes that do not fit, functions that a worker cannot import, spaces without a tensor form.
        EnvError: An environment raised while it was made.
    """

    def __init__(
        self,
        makes: Sequence[Make],
        *,
        num_workers: int,
        device: torch.device | str = "cpu",
        seed: int = 0,
        first_env: int = 0,
        figures: tuple[str, ...] = (),
        resume: ResumeLevel = "replayed",
        pin: bool | None = None,
        supervision: Supervision | None = None,
        tell: Callable[[Fault], object] | None = None,
    ) -> None:
        self.num_envs, self.device, self.seed, self.first_env = len(makes), torch.device(device), seed, first_env
        if not 0 <= num_workers <= self.num_envs or not self.num_envs:
            raise ValueError(
                f"num_workers={num_workers} does not fit {self.num_envs} environments: a worker steps at least one. "
                f"Choose num_workers between 0 (in this process) and num_envs."
            )
        pairs = [make if isinstance(make, tuple) else (make, {}) for make in makes]
        self.record = None if supervision is None else Record(supervision, tell)
        self._workers = start(pairs, num_workers, first_env, figures, supervision is not None)
        self._crew = Crew(self._workers, first_env, self.record)
        self._stopped = weakref.finalize(self, stop, self._workers)
        self._pinned = False
        try:
            self._bind([reply[1] for reply in self._crew.replies()], figures, resume)
        except BaseException:
            self.close()
            raise
        self._pinned = self.device.type == "cuda" and pin is not False and _page_lock(self._slots)
        self._whole, half = self._part(ALL, figures), len(self._workers) // 2
        parts = (slice(0, half), slice(half, len(self._workers))) if half else ()
        self.halves = tuple(self._part(workers, figures) for workers in parts)

    def _part(self, workers: slice, figures: tuple[str, ...]) -> Part:
        shared = self._crew, workers, self._tensors, self.spec, self._paths, figures
        return Part(*shared, self.device, self._pinned)

    def _bind(self, spaces: list[Spaces], figures: tuple[str, ...], resume: ResumeLevel) -> None:
        """Lays out the shared memory, now that the workers have said what their environments give and take."""
        if any(other != spaces[0] for other in spaces):
            raise ValueError(f"environments of one vector have one kind of spaces, these differ: {spaces}.")
        self.spec = env_spec(spaces[0], resume, overlappable=self._workers[0].process is not None)
        logged = min(spaces[0].max_episode_steps or REPLAY_LIMIT, REPLAY_LIMIT)
        fields = layout(spaces[0], self.num_envs, len(self._workers), figures, logged)
        self._slots = Slots(fields, self._workers[0].memory_fd)
        self._crew.bind(fields, self._slots)
        self._tensors = {name: torch.from_numpy(array) for name, array in self._slots.arrays.items()}
        self._paths = [path for path, _ in spaces[0].obs_paths()]
        self.resumed = torch.ones(self.num_envs, dtype=torch.bool)

    # -- the protocol -----------------------------------------------------------------------------------------------

    def reset(self, seed: int | None = None) -> Tree:
        """Starts episode 0 of every environment under `seed` (None: the seed it has). Returns obs (N, ...)."""
        self.seed = self._crew.seed = self.seed if seed is None else seed
        self._crew.ask(b"R", [self.seed] * len(self._workers))
        self.resumed.fill_(True)
        return self.observe()

    def observe(self) -> Tree:
        """Tree (N, ...): what to act on next, a copy."""
        return self._whole.observe()

    def send(self, action: Tensor) -> None:
        """Hands over actions (N, ...) and wakes the workers.

        Raises:
            ValueError: An action of another shape.
        """
        self._whole.send(action)

    def recv(self) -> Step:
        """Waits for all environments; every row is a real transition.

        Raises:
            EnvError: An environment raised, or its worker died; names environment, episode, step and seed. Supervised,
                only where that happened too often.
        """
        return self._whole.recv()

    def step(self, action: Tensor) -> Step:
        """`send`, then `recv`."""
        self.send(action)
        return self.recv()

    def facts(self) -> dict[str, Any]:
        """What the steps have cost so far, in the workers' own words.

        Returns:
            ``spent_s``, ``worst_s``: seconds of all steps and of the longest, by environment; ``worker_rows``: rows of
            each worker; ``cpu_s``: processor seconds of each worker process; ``renderer``: None where none is named.
        """
        parts = self._crew.ask(b"f", [None] * len(self._workers))
        seconds = {kind: [ns * 1e-9 for part in parts for ns in part[f"{kind}_ns"]] for kind in ("spent", "worst")}
        return {
            "spent_s": seconds["spent"],
            "worst_s": seconds["worst"],
            "worker_rows": [list(range(worker.rows.start, worker.rows.stop)) for worker in self._workers],
            "cpu_s": [part["cpu_s"] for part in parts] if self.spec.overlappable else [],
            "renderer": next((part["renderer"] for part in parts if part["renderer"]), None),
        }

    def state_dict(self) -> dict:
        """Where every live episode stands, by environment: its index, its length, its actions, its last observation."""
        assert not self._crew.in_flight, "state_dict between send and recv"
        log, length = self._slots.arrays["log"], self._slots.arrays["length"]
        logged = length <= log.shape[1]
        kept = [log[row, : length[row]].tobytes() for row in range(self.num_envs) if logged[row]]
        return {
            "seed": self.seed,
            "first_env": self.first_env,
            "episode": self._tensors["episode"].clone(),
            "length": self._tensors["length"].clone(),
            "logged": torch.from_numpy(logged),
            "actions": torch.frombuffer(bytearray(b"".join(kept) or b"\0"), dtype=torch.uint8),
            "obs": self.observe(),
        }

    def load_state_dict(self, state: dict) -> None:
        """Takes up the live episodes of `state`: each is reset with its seed and its actions are repeated.

        An episode goes on only where that leads to the observation it was left with, bit for bit; elsewhere, and
        everywhere with ``resume="truncated"``, the next episode begins. `resumed` says which, `observe` gives what to
        act on.

        Raises:
            ValueError: The state is of another number of environments or other global indices.
        """
        here, saved = (self.num_envs, self.first_env), (len(state["episode"]), state["first_env"])
        if here != saved:
            raise ValueError(
                f"the saved state is of {saved[0]} environments from number {saved[1]} on, these are {here[0]} from "
                f"number {here[1]} on: resume with the same num_envs and number of ranks."
            )
        self.seed = self._crew.seed = state["seed"]
        for name in ("episode", "length"):
            self._tensors[name].copy_(state[name])
        for name, leaf in tree_paths(state["obs"], "obs"):
            self._tensors[name].copy_(leaf)
        kept = (state["logged"] & (self.spec.resume == "replayed")).tolist()
        _fill(self._slots.arrays["log"], state["actions"], state["length"].tolist(), state["logged"].tolist())
        self._crew.ask(b"P", [(self.seed, kept[worker.rows]) for worker in self._workers])
        self.resumed = self._tensors["resumed"].clone()
        cut = int((~self.resumed).sum())
        if cut:
            warnings.warn(
                f"{cut} of {self.num_envs} live episodes could not be taken up and end as truncations "
                f"(resume level 'truncated').",
                stacklevel=2,
            )

    def close(self) -> None:
        """Closes the environments and ends the workers, within `CLOSE_S` seconds; may be called again."""
        if self._pinned:
            torch.cuda.cudart().cudaHostUnregister(self._tensors["action"].data_ptr())
            self._pinned = False
        self._stopped()


def _fill(log: Any, actions: Tensor, lengths: list[int], logged: list[bool]) -> None:
    """Lays out the joined actions (bytes,) of a saved state as logs, one an environment."""
    data, at, size = actions.numpy().tobytes(), 0, log[0, 0].nbytes
    for row, (length, known) in enumerate(zip(lengths, logged, strict=True)):
        if known and length <= log.shape[1]:
            part = np.frombuffer(data, log.dtype, length * log[0, 0].size, at)
            log[row, :length] = part.reshape(length, *log.shape[2:])
        at += length * size if known else 0


def _page_lock(slots: Slots) -> bool:
    """Page-locks what travels for CUDA's asynchronous copies; False, with a warning, where the driver refuses."""
    memory = torch.frombuffer(slots.memory, dtype=torch.uint8)
    code = int(torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), slots.starts["log"], 0))
    if code:
        warnings.warn(f"shared memory is not page-locked (CUDA error {code}): copies will be slower.", stacklevel=3)
    return code == 0
