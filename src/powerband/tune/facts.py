"""Facts: what is known beside the ledger of a run, for rules to read. All are optional: a plain clock has none."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from powerband.tune.host import HostUse


@dataclass(frozen=True)
class Facts:
    """Figures of one rank over one window.

    Attributes:
        iterations: Calls of `tick`: environment steps of all environments, or rollouts.
        env_steps, grad_steps: Counted in the window, over all ranks.
        world_size: Ranks.
        num_envs: Environments of this rank.
        cores, threads: Of this machine; of this rank.
        precision: Of the networks; where the configuration says auto, what that was.
        overlappable: Simulators step in other processes.
        can_overlap, overlap: The loop could update meanwhile; it does.
        env_step_s, env_worst_s: Mean and longest seconds of a step, by environment of this rank, as its worker saw it.
        worker_rows: Environments of each worker.
        env_cpu_s: Processor seconds of all workers in the window.
        renderer: What the environments draw with, "" where they do not say.
        draws: Observations hold images.
        batch_rows: Rows of a batch handed to an update, of this rank.
        update_s: Rows -> seconds of one update by itself, each measured right after the window.
        threads_s: Threads -> seconds of one update by itself with so many, at the batch of the run.
        update_flops: Floating-point operations of one update on this rank; 0 where they were not counted.
        peak_flops_s: Of a large matrix product on this device, in the run's precision and with its threads.
        syncs_per_iteration: Times an iteration that Python asked a tensor for its value.
        sync_s: Seconds of one such question.
        host: Processor use.
        settled: False where the window had to begin with the first step.
        memory_bytes: Memory that this rank needs, a full replay included: on its GPU, or of the machine with its
            workers. Evaluation and checkpoints are in it where they came in the window. 0 where nobody says.
        reductions, reduced_bytes: All-reduces of an iteration, which one rank by itself need not make, and their bytes.
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
    draws: bool = False
    batch_rows: int = 0
    update_s: dict[int, float] = field(default_factory=dict)
    threads_s: dict[int, float] = field(default_factory=dict)
    update_flops: int = 0
    peak_flops_s: float = 0.0
    syncs_per_iteration: float = 0.0
    sync_s: float = 0.0
    host: HostUse = field(default_factory=HostUse)
    settled: bool = True
    memory_bytes: int = 0
    reductions: float = 0.0
    reduced_bytes: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """As JSON; `from_dict` reads it back."""
        return asdict(self)

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> Facts:
        """What `to_dict` gave, also after a journey as JSON, whose keys are texts."""
        tables = {name: {int(key): value for key, value in saved[name].items()} for name in ("update_s", "threads_s")}
        return cls(**{**saved, **tables, "host": HostUse(**saved["host"])})

    def flops_s(self, update_s: float) -> float:
        """Floating-point operations a second of this rank while it updates.

        Args:
            update_s: Seconds of the updates in the window.
        """
        return self.update_flops * self.grad_steps / update_s if update_s > 0 else 0.0

    @property
    def fixed_update_share(self) -> float | None:
        """Share of an update's time that does not grow with its batch, by a line through two sizes; None unprobed."""
        if len(self.update_s) < 2 or self.batch_rows not in self.update_s:
            return None
        other = max(self.update_s)
        slope = (self.update_s[other] - self.update_s[self.batch_rows]) / (other - self.batch_rows)
        return min(1.0, max(0.0, 1 - slope * self.batch_rows / self.update_s[self.batch_rows]))
