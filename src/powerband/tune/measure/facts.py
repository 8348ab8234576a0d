"""WindowFacts: the figures of a measured window, besides its time per category, that the diagnosis rules read."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from powerband.tune.measure.cpu_time import CpuUse

JSON_NAMES = {"steady_state": "settled", "image_obs": "draws"}
"""Attribute -> JSON key, for attributes whose key in stored files differs from their name."""


@dataclass(frozen=True)
class WindowFacts:
    """Figures of one rank over one window (the measured part of a run), besides the time per category.

    All attributes are optional, because a training loop outside of this package provides few of them.

    Attributes:
        iterations: Number of calls of `Run.tick`: steps of all environments, or rollouts.
        env_steps: Environment steps in the window, over all ranks.
        grad_steps: Updates in the window, over all ranks.
        world_size: Number of ranks.
        num_envs: Number of environments of this rank.
        cores: Number of cores of this machine.
        threads: Number of threads of this rank.
        precision: Floating point type of the networks, after ``auto`` has been resolved.
        overlappable: Whether simulators step in other processes.
        can_overlap: Whether the loop could update while simulators step.
        overlap: Whether the loop updates while simulators step.
        env_step_s: Mean seconds per step of each environment of this rank, as measured by its worker.
        env_worst_s: Longest step of each environment of this rank, in seconds.
        worker_rows: Indices of the environments of each worker.
        env_cpu_s: Processor seconds of all workers of this rank in the window.
        renderer: Name of the renderer of the environments; "" if they do not report one.
        render_share: Share of the wall time that simulators spend drawing images; None if it was not measured.
        image_obs: Whether observations contain images.
        batch_rows: Rows (transitions) per update on this rank.
        update_s: Batch size in rows -> seconds of a single update, timed right after the window.
        threads_s: Number of threads -> seconds of a single update with the batch of the run.
        compute_share: Share of the time of an update in which its operations compute, 0 to 1. The rest launches them.
            It decides about small batches if no second batch size was timed. None if no update was profiled.
        update_operations: Operations of a profiled update, without those of its optimiser step.
        update_flops: Floating-point operations per update on this rank; 0 if they were not counted.
        peak_flops_s: Floating-point operations per second of a large matrix product on this device, with the
            precision and the threads of the run.
        syncs_per_iteration: Host-device synchronisations per iteration: tensors converted to Python values.
        sync_s: Seconds per host-device synchronisation on an idle device.
        device_busy: Share of the wall time in which the GPU runs a kernel or a copy, 0 to 1; None if unknown.
        host: Processor use of this process and of the machine.
        steady_state: False if the window includes the first step, because the run ended too early.
        memory_bytes: Memory that this rank needs with a full replay buffer: of its GPU, or of the machine including
            its workers. Includes evaluation and checkpoints if they happened in the window. 0 if unknown.
        reductions: All-reduces per iteration. With one rank, those that several ranks would need.
        reduced_bytes: Bytes of the all-reduces of an iteration.
    """

    iterations: int = 0
    env_steps: int = 0
    grad_steps: int = 0
    world_size: int = 1
    num_envs: int = 0
    cores: int = 0
    threads: int = 0
    precision: str = ""
    overlappable: bool = False
    can_overlap: bool = False
    overlap: bool = False
    env_step_s: list[float] = field(default_factory=list)
    env_worst_s: list[float] = field(default_factory=list)
    worker_rows: list[list[int]] = field(default_factory=list)
    env_cpu_s: float = 0.0
    renderer: str = ""
    render_share: float | None = None
    image_obs: bool = False
    batch_rows: int = 0
    update_s: dict[int, float] = field(default_factory=dict)
    threads_s: dict[int, float] = field(default_factory=dict)
    compute_share: float | None = None
    update_operations: float = 0.0
    update_flops: int = 0
    peak_flops_s: float = 0.0
    syncs_per_iteration: float = 0.0
    sync_s: float = 0.0
    device_busy: float | None = None
    host: CpuUse = field(default_factory=CpuUse)
    steady_state: bool = True
    memory_bytes: int = 0
    reductions: float = 0.0
    reduced_bytes: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Returns the figures as a JSON value; `JSON_NAMES` has the keys that differ from the attributes."""
        return {JSON_NAMES.get(name, name): value for name, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> WindowFacts:
        """Restores window facts from the result of `to_dict`, even if JSON has turned integer keys into strings."""
        attributes = {json_name: name for name, json_name in JSON_NAMES.items()}
        values = {attributes.get(name, name): value for name, value in saved.items()}
        tables = {name: {int(key): value for key, value in saved[name].items()} for name in ("update_s", "threads_s")}
        return cls(**{**values, **tables, "host": CpuUse(**saved["host"])})

    def flops_s(self, update_s: float) -> float:
        """Returns the floating-point operations per second of this rank during updates.

        Args:
            update_s: Seconds of all updates in the window.
        """
        return self.update_flops * self.grad_steps / update_s if update_s > 0 else 0.0

    @property
    def fixed_update_share(self) -> float | None:
        """Share of the time of an update that does not grow with its batch, 0 to 1.

        It follows from the times of updates with two batch sizes, else from a profile of some updates; None if neither
        was measured.
        """
        if not self.update_s and self.compute_share is not None:
            return min(1.0, max(0.0, 1 - self.compute_share))
        if len(self.update_s) < 2 or self.batch_rows not in self.update_s:
            return None
        other = max(self.update_s)
        slope = (self.update_s[other] - self.update_s[self.batch_rows]) / (other - self.batch_rows)
        return min(1.0, max(0.0, 1 - slope * self.batch_rows / self.update_s[self.batch_rows]))
