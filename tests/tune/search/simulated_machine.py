"""Simulated machine for tests of the search: the true rate of every configuration is known."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from typing import Any

from powerband.core.config import RunConfig
from powerband.core.config.sizes import per_rank
from powerband.core.recipe import Algorithm, Recipe
from powerband.tune.measure.facts import WindowFacts
from powerband.tune.measure.in_process import Measurement
from powerband.tune.measure.ledger import Ledger

CORES, GIB = 4, 2**30


@dataclass(frozen=True)
class Loop:
    num_envs: int = 16
    global_batch_size: int = 256
    batch_size_per_rank: int = 0
    update_interval: int = 4
    updates_per_interval: int = 1


@dataclass(frozen=True)
class Rates:
    actor_lr: float = 3e-4
    critic_lr: float = 3e-4


@dataclass(frozen=True)
class Config:
    algo: str = "sac"
    num_workers: int = 4
    run: RunConfig = field(default_factory=lambda: RunConfig(gpus="none", threads=4))
    off_policy: Loop = field(default_factory=Loop)
    sac: Rates = field(default_factory=Rates)


def check(config: Config, world_size: int) -> None:
    per_rank("num_envs", config.off_policy.num_envs, world_size)
    per_rank("global_batch_size", config.off_policy.global_batch_size, world_size)


RECIPE = Recipe(
    name="simulated",
    summary="",
    Config=Config,
    stages={"train": "simulated:train"},
    algorithms={"sac": Algorithm("simulated:SAC", Rates(), "off_policy")},
    check=check,
)


@dataclass
class World:
    """Simulated machine, which computes the seconds of the parts of an iteration from a configuration.

    Attributes:
        env_s: Seconds per step of one environment.
        half: Time of an update in bf16 divided by its time in fp32.
        oversubscribed: Relative time that each additional thread adds to an update; small networks do not profit from
            threads.
        comm_s: Seconds per all-reduce.
        gib: Memory of a rank without environments, and per environment, in GiB.
        memory_gib: Memory of the machine in GiB.
        noise: Relative deviation of a measurement.
        too_large: Error of a run that does not fit into memory.
    """

    env_s: float = 2e-3
    half: float = 0.6
    oversubscribed: float = 0.15
    comm_s: float = 1e-3
    gib: tuple[float, float] = (1.0, 0.01)
    memory_gib: float = 64.0
    noise: float = 0.01
    too_large: Exception = field(
        default_factory=lambda: RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB.")
    )

    def __post_init__(self) -> None:
        self.runs: list[Config] = []
        self.random = random.Random(0)

    def parts(self, config: Config) -> dict[str, float]:
        run, loop = config.run, config.off_policy
        n, ranks = loop.num_envs / run.nproc, run.nproc
        slower = 1 + self.oversubscribed * (run.threads - 1)
        arithmetic = self.half if run.precision == "bf16" else 1.0
        rows = loop.global_batch_size / ranks
        due = loop.num_envs * loop.updates_per_interval / loop.update_interval
        stepping = n * self.env_s if not config.num_workers else math.ceil(n / config.num_workers) * self.env_s + 4e-4
        waits = {"env": stepping} if not config.num_workers else {"env_wait": stepping}
        return waits | {
            "act": (4e-4 + 2e-5 * n) * slower,
            "update": due * (2e-3 + 1e-5 * rows) * slower * arithmetic,
            "collectives": due * self.comm_s * (ranks > 1),
        }

    def seconds(self, config: Config) -> float:
        parts = self.parts(config)
        hidden = min(parts.get("env_wait", 0.0), parts["update"] + parts["collectives"]) if config.run.overlap else 0.0
        return sum(parts.values()) - hidden

    def rate(self, config: Config) -> float:
        return config.off_policy.num_envs / self.seconds(config)

    def measure(self, recipe: Any, stage: str, config: Config, seconds: float, probe: bool = False) -> Measurement:
        self.runs.append(config)
        loop, ranks = config.off_policy, config.run.nproc
        memory = (self.gib[0] + self.gib[1] * loop.num_envs / ranks) * GIB
        if memory > self.memory_gib * GIB:
            raise self.too_large
        factor = 1 + self.random.uniform(-self.noise, self.noise)
        parts = {name: part * factor for name, part in self.parts(config).items()}
        if config.run.overlap:
            parts["env_wait"] = max(0.0, parts.get("env_wait", 0.0) - parts["update"] - parts["collectives"])
        iterations, n = 500, loop.num_envs // ranks
        due = loop.num_envs * loop.updates_per_interval / loop.update_interval
        ledger = {name: part * iterations for name, part in parts.items()}
        own = parts["update"] / due
        rows = loop.global_batch_size // ranks
        fixed = own * 2e-3 / (2e-3 + 1e-5 * rows)
        workers = config.num_workers
        facts = WindowFacts(
            iterations=iterations,
            env_steps=iterations * loop.num_envs,
            grad_steps=round(iterations * due),
            world_size=ranks,
            num_envs=n,
            cores=CORES,
            threads=config.run.threads,
            overlappable=bool(workers),
            can_overlap=bool(workers),
            overlap=config.run.overlap,
            env_step_s=[self.env_s] * n,
            worker_rows=[list(range(n * w // workers, n * (w + 1) // workers)) for w in range(workers)],
            batch_rows=rows,
            update_s={rows: own, 4 * rows: fixed + (own - fixed) * 4},
            memory_bytes=int(memory),
        )
        return Measurement([Ledger(sum(ledger.values()), ledger)] * ranks, [facts] * ranks, True)
