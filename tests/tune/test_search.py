"""The search against loops whose every rate is known: it finds the best, keeps to its rule, budget and memory."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from powerband.core.config import ConfigError, RunConfig
from powerband.core.room import OutOfRoom
from powerband.core.scaling import per_rank
from powerband.tune import search as searching
from powerband.tune.facts import Facts
from powerband.tune.ledger import Ledger
from powerband.tune.measure import Measurement
from powerband.tune.search import Options, Search, Tuned
from powerband.tune.space import Space

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


RECIPE = SimpleNamespace(SECTIONS={"sac": ("sac", "off_policy")}, STAGES={}, check=check, __name__="recipes.simulated")


@dataclass
class World:
    """A machine: what an iteration costs there. Seconds of each part by configuration.

    Attributes:
        env_s: Of one environment in a worker.
        half: Speed of bf16 against fp32.
        oversubscribed: What a thread more than one costs an update: small networks gain nothing from threads.
        comm_s: Of an all-reduce.
        gib: Memory of a rank without environments, and of each environment.
        noise: Relative deviation of a measurement.
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
        facts = Facts(
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


@pytest.fixture
def tuned(monkeypatch: pytest.MonkeyPatch):
    def run(world: World, config: Config | None = None, **options: Any) -> Tuned:
        monkeypatch.setattr(searching, "short_run", world.measure)
        monkeypatch.setattr(searching.memory, "free", lambda device: 256 * GIB)
        return Search(RECIPE, "train", config or Config(), Options(**options), lambda *told: None).run()

    return run


def best_of(world: World, space: Space) -> float:
    """The highest true rate of the whole space."""
    rates = []
    for parts in itertools.product(*([{}, *axis.settings] for axis in space.axes)):
        setting = space.complete([part for part in parts if part])
        if setting is not None and (config := space.config_of(setting)):
            rates.append(world.rate(config))
    return max(rates)


WORLDS = {
    "update-bound": World(),
    "slow environments": World(env_s=20e-3),
    "dear collectives": World(comm_s=30e-3),
    "bf16 is slow here": World(half=1.7),
    "threads help": World(oversubscribed=-0.15),
}


@pytest.mark.parametrize("rule", ["fixed", "constant-reuse", "sqrt-lr"])
@pytest.mark.parametrize("world", WORLDS)
def test_it_is_near_the_best_of_the_whole_space(tuned, world: str, rule: str) -> None:
    found = tuned(WORLDS[world], learning=rule)
    chosen = WORLDS[world].rate(found.space.config_of(found.best.setting))
    assert chosen >= 0.9 * best_of(WORLDS[world], found.space)
    assert found.gain > 1.2


def test_most_settings_are_predicted_and_few_are_run(tuned) -> None:
    world = World()
    found = tuned(world, learning="constant-reuse")
    assert len(found.candidates) > 500
    assert len({repr(config) for config in world.runs}) <= 20
    errors = [each.predicted / world.rate(found.space.config_of(each.setting)) - 1 for each in found.candidates]
    assert sorted(map(abs, errors))[len(errors) // 2] < 0.15


def test_the_best_of_another_number_of_ranks_is_run_whatever_the_model_says(tuned, monkeypatch) -> None:
    world, now = World(comm_s=4e-3), [0.0]
    measured = world.measure
    monkeypatch.setattr(searching, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    def dear(recipe: Any, stage: str, config: Config, *rest: Any, **words: Any) -> Measurement:
        now[0] += 9.0 if config.run.nproc > 1 else 2.0  # two ranks take their time to start
        return measured(recipe, stage, config, *rest, **words)

    world.measure = dear
    found = tuned(world, learning="constant-reuse", seconds=60)
    assert len({each.setting.get("nproc", 1) for each in found.verified[1:]}) > 1


def test_what_cannot_be_beaten_stays(tuned) -> None:
    run = RunConfig(gpus="none", threads=1, nproc=1, overlap=True)
    world = World(half=1.5, comm_s=1.0, oversubscribed=0.5, env_s=1e-5)
    found = tuned(world, Config(run=run))
    assert found.best is found.present and found.gain == 1.0


def test_a_fixed_rule_moves_nothing_that_is_learnt(tuned) -> None:
    found = tuned(World(), learning="fixed")
    knobs = {knob for each in found.candidates for knob in each.setting}
    assert knobs <= {"nproc", "threads", "precision", "overlap", "num_workers"}
    assert not any(each.learning for each in found.candidates)


@pytest.mark.parametrize("rule", ["constant-reuse", "sqrt-lr"])
def test_a_rule_keeps_the_samples_learnt_from_and_says_what_changes_learning(tuned, rule: str) -> None:
    found = tuned(World(), learning=rule)
    moved = [each for each in found.candidates if each.learning]
    assert moved
    for each in found.candidates:
        config = found.space.config_of(each.setting)
        loop = config.off_policy
        reuse = loop.global_batch_size * loop.updates_per_interval / loop.update_interval
        assert reuse == 256 / 4
        growth = math.sqrt(loop.global_batch_size / 256) if rule == "sqrt-lr" else 1.0
        assert config.sac.actor_lr == pytest.approx(3e-4 * growth) == config.sac.critic_lr
        assert each.learning == (loop.num_envs != 16 or loop.global_batch_size != 256)


def test_sizes_that_do_not_divide_by_the_ranks_are_not_offered(tuned) -> None:
    found = tuned(World(), Config(off_policy=Loop(num_envs=6)))
    assert {each.setting.get("nproc", 1) for each in found.candidates} == {1, 2}


@pytest.mark.parametrize("said", [RuntimeError("CUDA out of memory."), OutOfRoom("this process ran out of memory")])
def test_what_does_not_fit_into_memory_is_neither_offered_nor_run_again(tuned, said: Exception) -> None:
    world = World(gib=(1.0, 0.5), memory_gib=20.0, too_large=said)  # 16 environments need 9 GiB, 32 need 17, 64 need 33
    found = tuned(world, learning="constant-reuse", memory_gib=20.0)
    assert max(each.setting.get("num_envs", 16) for each in found.candidates) == 36  # the last of 16, 20, ... that fits
    assert any("does not fit into memory" in note for note in found.notes)
    limited = tuned(World(gib=(1.0, 0.05)), learning="constant-reuse", memory_gib=3.0)
    most = max(each.setting.get("num_envs", 16) for each in limited.candidates)
    assert most == 32  # 1 + 0.05 x 32 = 2.6 GiB; 64 would need 4.2


def test_a_budget_that_is_spent_says_what_was_not_probed(tuned, monkeypatch) -> None:
    world, clock = World(), itertools.count(0, 5)  # a look at the clock every five seconds
    monkeypatch.setattr(searching, "time", SimpleNamespace(perf_counter=lambda: float(next(clock))))
    found = tuned(world, seconds=30)
    assert any("not probed" in note for note in found.notes)
    assert len(found.present.rates) == 1 and len(found.verified) > 1  # verified all the same


def test_a_first_run_that_compiled_is_repeated_and_costs_no_budget(tuned, monkeypatch) -> None:
    world, now = World(), [0.0]
    measured = world.measure
    monkeypatch.setattr(searching, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    def compiling(recipe: Any, stage: str, config: Config, *rest: Any, **words: Any) -> Measurement:
        now[0] += 1.0 if world.runs else 60.0
        return measured(recipe, stage, config, *rest, **words)

    world.measure = compiling
    found = tuned(world, seconds=30)
    assert world.runs[0] == world.runs[1] and not found.notes
    assert found.seconds == len(world.runs) - 1


@pytest.mark.parametrize(
    ("options", "said"), [(dict(seconds=5), "seconds=5"), (dict(memory_gib=-1.0), "memory_gib=-1")]
)
def test_bad_options_are_refused(options: dict, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Options(**options)


def test_any_other_failure_of_a_run_is_not_swallowed(tuned, monkeypatch) -> None:
    world = World()
    measured = world.measure

    def broken(recipe: Any, stage: str, config: Config, *rest: Any) -> Measurement:
        if config.run.precision == "bf16":
            raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")
        return measured(recipe, stage, config, *rest)

    world.measure = broken
    with pytest.raises(RuntimeError, match="mat1"):
        tuned(world)


def test_a_setting_that_its_run_refuses_is_noted_and_the_search_goes_on(tuned) -> None:
    world = World()
    measured = world.measure

    def refusing(recipe: Any, stage: str, config: Config, *rest: Any) -> Measurement:
        if config.num_workers == 8:
            raise ConfigError("num_workers=8 does not fit")
        return measured(recipe, stage, config, *rest)

    world.measure = refusing
    found = tuned(world)
    assert any("num_workers=8: refused" in note for note in found.notes)
    assert all(each.setting.get("num_workers") != 8 for each in found.candidates)
