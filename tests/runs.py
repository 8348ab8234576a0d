"""Runs through the real command line, and what they left behind."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from powerband.cli import main as cli
from powerband.core.run.checkpoints.checkpoint import load_checkpoint, resolve_resume

CLOCKS = {"time_s", "time/training_s", "charts/SPS", "charts/updates_per_s"}
"""Figures that hold seconds: no two runs have the same."""
BY_CLOCK = ("elapsed_s", "interval_s", "evaluation_s", "evaluated_at_s")
"""Ends of names in a checkpoint that hold seconds."""
MEASURED = ("perf/share", "perf/idle", "perf/cpu", "perf/memory", "perf/gpu")
"""Beginnings of figures that are measured on the machine."""

SMALL = {
    "ppo": "snakes algo=ppo variant=smoke on_policy.num_envs=8 num_steps=8 mirrored=0.5 snapshot_interval=3".split(),
    "ddpg": "snakes algo=ddpg ddpg.hidden=32 off_policy.num_envs=4 global_batch_size=32 learning_starts=40".split(),
    "bicnet": "snakes algo=bicnet ddpg.hidden=16 off_policy.num_envs=4 global_batch_size=16 learning_starts=40".split(),
    "coma": "uav algo=coma variant=smoke on_policy.num_envs=3 budget=4 minibatch_rows=25".split(),
    "iac": "uav algo=iac variant=smoke on_policy.num_envs=3 budget=4 minibatch_rows=25".split(),
    "mappo": "uav algo=mappo variant=smoke on_policy.num_envs=3 budget=4 minibatch_rows=25".split(),
    "sketchnav": "sketchnav variant=smoke".split(),
    "sac": "gym algo=sac sac.hidden=32,32 off_policy.num_envs=2 learning_starts=40 random_steps=40".split(),
    "td3": (
        "gym algo=td3 td3.hidden=16 td3.normalize_obs=true off_policy.normalize_reward=true off_policy.num_envs=2 "
        "global_batch_size=32 learning_starts=40 random_steps=40"
    ).split(),
    "dqn": (
        "gym env_id=CartPole-v1 algo=dqn dqn.hidden=32 dqn.epsilon_steps=300 off_policy.num_envs=3 n_step=3 "
        "global_batch_size=32 replay_size=200 learning_starts=40 random_steps=40 num_workers=0"
    ).split(),
    "fast_td3": (
        "gym algo=fast_td3 hidden=16 critic_hidden=16 off_policy.num_envs=4 global_batch_size=32 update_interval=4 "
        "updates_per_interval=2 learning_starts=40 random_steps=40"
    ).split(),
    "metaworld": (
        "metaworld variant=smoke backend=workers num_workers=0 sac.hidden=16 learning_starts=60 random_steps=60 "
        "collect.interval=100 collect.samples=40 final_episodes=0 horizon=30 update_interval=1 project={run_dir}"
    ).split(),
    "cartpole": (
        "gym env_id=CartPole-v1 algo=ppo ppo.hidden=16 shared_trunk=true on_policy.num_envs=4 "
        "num_steps=16 minibatches=2"
    ).split(),
    "dials": (
        "gym env_id=contract.registered:Dials-v0 algo=ppo ppo.hidden=16 action_mask=true on_policy.num_envs=4 "
        "num_steps=16 minibatches=4 num_workers=0"
    ).split(),
    "fused": (
        "gym env_id=CartPole-v1 algo=ppo ppo.hidden=16 shared_trunk=false on_policy.num_envs=4 "
        "num_steps=16 minibatches=4"
    ).split(),
}
SMALL["hindsight"] = (
    "gym env_id=contract.registered:BitFlip-v0 algo=dqn dqn.hidden=16 dqn.epsilon_steps=300 off_policy.num_envs=3 "
    "hindsight=4 priority_exponent=0.5 global_batch_size=32 replay_size=200 learning_starts=40 num_workers=0"
).split()
SMALL["prioritised"] = [*SMALL["dqn"], "priority_exponent=0.6"]
COMMON = "gpus=none threads=1 tensorboard=false".split()


def train(name: str, run_dir: Path, *words: str) -> Path:
    """Trains one of `SMALL` and returns its run folder."""
    own = [word.format(run_dir=run_dir) for word in SMALL[name]]
    assert cli.main(["train", *own, *COMMON, f"run_dir={run_dir}", *words]) == 0
    return run_dir


def resume(name: str, run_dir: Path, *words: str) -> Path:
    """Goes on with a run of `SMALL`."""
    trust = ["--trust"] * any(word.startswith("env_id=contract.") for word in SMALL[name])
    assert cli.main(["train", SMALL[name][0], f"resume={run_dir}", *words, *trust]) == 0
    return run_dir


def leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every leaf of a checkpoint with its path."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from leaves(value, f"{path}/{key}")
    elif isinstance(tree, list):
        for index, value in enumerate(tree):
            yield from leaves(value, f"{path}/{index}")
    else:
        yield path, tree


def state(run_dir: Path) -> dict[str, Any]:
    """The newest checkpoint of a run, leaf by leaf, without the seconds it took."""
    path, _ = resolve_resume(str(run_dir))
    found: dict[str, Any] = {}
    for shard in sorted(file.stem for file in path.glob("*.safetensors")):
        found.update(leaves(load_checkpoint(path, shard)[0], shard))
    return {name: leaf for name, leaf in found.items() if not name.endswith(BY_CLOCK)}


def differences(first: Path, second: Path) -> list[str]:
    """Names of the leaves in which the newest checkpoints of two runs differ, bit for bit."""
    one, two = state(first), state(second)
    different = sorted(one.keys() ^ two.keys())
    for name in one.keys() & two.keys():
        a, b = one[name], two[name]
        same = torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
        different += [] if same else [name]
    return different


def metrics(run_dir: Path) -> list[dict]:
    """The lines of metrics.jsonl without what is measured in seconds."""
    lines = [json.loads(text) for text in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k not in CLOCKS and not k.startswith(MEASURED)} for line in lines]
