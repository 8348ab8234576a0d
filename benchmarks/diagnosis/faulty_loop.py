"""Off-policy training loop with an injected fault, measured by powerband, TraceML or Fournex (`fault_peers.py`).

    python benchmarks/diagnosis/faulty_loop.py --dose '{"batch": 4}' --tool powerband --seconds 5

The loop is Double DQN on Pendulum with nine torques. It uses powerband only as a measuring tool. `with tool.phase(...)`
marks the parts of an iteration; each tool uses the marks that it supports.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import dataclasses
import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

sys.path.insert(0, str(Path(__file__).parent))
matplotlib.use("Agg")

import faulty_envs as envs
from peer_tools import TOOLS, Untimed

TORQUES = np.linspace(-2, 2, 9, dtype=np.float32)
CHUNK = 128
"""Transitions per sample of the data loader."""


@dataclass(frozen=True)
class Dose:
    """Settings of the loop; the defaults have no fault.

    Attributes:
        env_id: Gymnasium id of the environment.
        env_ms: Milliseconds per step of a faulty environment.
        workers: Number of environments, each in a separate process; only the first is `env_id`. 0 runs one environment
            in this process.
        env_steps: Environment steps per collection.
        updates: Updates per collection.
        batch: Transitions per update.
        load_ms: Milliseconds to decode `CHUNK` transitions in a torch DataLoader; None samples the replay buffer.
        questions: Host-device synchronisations per update: conversions of a tensor to a Python value.
        question_ms: Milliseconds per synchronisation, as on a busy device; 0 does not change it.
        eval_every: Updates between evaluations of 5 episodes.
        log_every: Updates between log lines with a figure.
        save_every: Updates between checkpoints.
        threads: Number of threads of torch.
    """

    env_id: str = "Pendulum-v1"
    env_ms: float = 0.0
    workers: int = 0
    env_steps: int = 1
    updates: int = 1
    batch: int = 256
    load_ms: float | None = None
    questions: int = 1
    question_ms: float = 0.0
    eval_every: int = 100_000
    log_every: int = 1_000
    save_every: int = 2_000
    threads: int = 1


class Agent(nn.Module):
    """Double DQN; `forward` computes the loss, so that tools that time the forward pass include it."""

    def __init__(self) -> None:
        super().__init__()
        sizes = (3, 256), (256, 256)
        layers = [layer for n, m in sizes for layer in (nn.Linear(n, m), nn.ReLU())]
        self.net = nn.Sequential(*layers, nn.Linear(256, len(TORQUES)))
        self.target = copy.deepcopy(self.net).requires_grad_(False)

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        with torch.no_grad():
            best = self.net(batch["next_obs"]).argmax(1, keepdim=True)
            target = batch["reward"] + 0.99 * self.target(batch["next_obs"]).gather(1, best).squeeze(1)
        return F.smooth_l1_loss(self.net(batch["obs"]).gather(1, batch["action"].unsqueeze(1)).squeeze(1), target)

    @torch.no_grad()
    def act(self, obs: np.ndarray) -> np.ndarray:
        """Returns the greedy torque index for each observation (N, 3)."""
        device = next(self.parameters()).device
        return self.net(torch.as_tensor(obs, device=device)).argmax(-1).cpu().numpy()


class Replay:
    """Ring buffer of transitions that starts full of random ones; an infinite iterator over random batches."""

    def __init__(self, batch: int, size: int = 100_000) -> None:
        generator = np.random.default_rng(0)
        self.batch, self.at, self.generator = batch, 0, generator
        self.rows: dict[str, np.ndarray] = {
            "obs": generator.standard_normal((size, 3), np.float32),
            "next_obs": generator.standard_normal((size, 3), np.float32),
            "action": generator.integers(len(TORQUES), size=size),
            "reward": generator.standard_normal(size, np.float32),
        }

    def add(self, **columns: np.ndarray) -> None:
        """Stores transitions over the oldest ones."""
        count = len(columns["action"])
        index = (self.at + np.arange(count)) % len(self.rows["action"])
        for name, values in columns.items():
            self.rows[name][index] = values
        self.at += count

    def __iter__(self) -> Replay:
        return self

    def __next__(self) -> dict[str, torch.Tensor]:
        index = self.generator.integers(len(self.rows["action"]), size=self.batch)
        return {name: torch.from_numpy(values[index]) for name, values in self.rows.items()}


class Recorded(torch.utils.data.Dataset):
    """Recorded transitions in chunks that take time to decode, for the data loader."""

    def __init__(self, replay: Replay, load_ms: float) -> None:
        self.replay, self.load_s = replay, load_ms / 1e3

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        time.sleep(self.load_s)
        start = index * CHUNK % (len(self.replay.rows["action"]) - CHUNK)
        return {name: torch.from_numpy(rows[start : start + CHUNK]) for name, rows in self.replay.rows.items()}


def joined(chunks: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Returns the concatenated chunks as one batch."""
    return {name: torch.cat([chunk[name] for chunk in chunks]) for name in chunks[0]}


def make_env(dose: Dose) -> gym.vector.VectorEnv:
    """Returns the vector environment of the loop."""
    if not dose.workers:
        return gym.vector.SyncVectorEnv([lambda: gym.make(dose.env_id)])
    others = [lambda: gym.make("Pendulum-v1")] * (dose.workers - 1)
    return gym.vector.AsyncVectorEnv([lambda: gym.make(dose.env_id), *others])


def evaluate(agent: Agent, episodes: int = 5) -> float:
    """Returns the mean return over episodes."""
    env, total = gym.make("Pendulum-v1"), 0.0
    for episode in range(episodes):
        obs, _ = env.reset(seed=episode)
        for _ in range(200):
            obs, reward, *_ = env.step(TORQUES[agent.act(obs[None])])
            total += float(reward)
    return total / episodes


def write_figures(history: list[dict[str, float]], folder: Path) -> None:
    """Appends the last metrics to a log file and plots the losses."""
    (folder / "figures.jsonl").open("a").write(json.dumps(history[-1]) + "\n")
    figure, axes = plt.subplots()
    axes.plot([line["loss"] for line in history])
    figure.savefig(folder / "loss.png")
    plt.close(figure)


def save(agent: Agent, optimizer: torch.optim.Optimizer, replay: Replay, folder: Path) -> None:
    """Writes a checkpoint and waits until it is on the disk."""
    with (folder / "checkpoint.pt").open("wb") as file:
        torch.save({"agent": agent.state_dict(), "optimizer": optimizer.state_dict(), "replay": replay.rows}, file)
        file.flush()
        os.fsync(file.fileno())


def train(dose: Dose, tool: Untimed, seconds: float, folder: Path, device: torch.device) -> int:
    """Trains for `seconds` and returns the number of updates."""
    torch.set_num_threads(dose.threads)
    torch.manual_seed(0)
    env, agent, replay = make_env(dose), Agent().to(device), Replay(dose.batch)
    optimizer, history = torch.optim.Adam(agent.parameters(), lr=5e-4), []
    source: Any = replay
    if dose.load_ms is not None:
        source = torch.utils.data.DataLoader(Recorded(replay, dose.load_ms), dose.batch // CHUNK, collate_fn=joined)
    obs, _ = env.reset(seed=0)
    agent({name: rows.to(device) for name, rows in next(replay).items()}).backward()
    write_figures([{"loss": 0.0}], folder)
    tool.start(device)
    batches = tool.batches(source)
    end = time.perf_counter() + seconds
    for update in itertools.count():
        if time.perf_counter() >= end:
            break
        with tool.phase("sample" if dose.load_ms is None else "data", update):
            batch = next(batches)
        with tool.step(update, agent, batch):
            for _ in range(dose.env_steps if update % dose.updates == 0 else 0):
                with tool.phase("act", update):
                    action = agent.act(obs)
                with tool.phase("env", update):
                    next_obs, reward, *_ = env.step(TORQUES[action][:, None])
                with tool.phase("store", update):
                    replay.add(obs=obs, next_obs=next_obs, action=action, reward=reward)
                obs = next_obs
            with tool.phase("h2d", update):
                batch = {name: values.to(device) for name, values in batch.items()}
            with tool.phase("forward", update):
                loss = agent(batch)
            with tool.phase("backward", update):
                optimizer.zero_grad()
                loss.backward()
            with tool.phase("optimizer", update):
                optimizer.step()
            with tool.phase("read", update):
                metrics = {f"loss{number or ''}": loss.item() for number in range(dose.questions)}
            if update % 250 == 0:
                agent.target.load_state_dict(agent.net.state_dict())
            if update and update % dose.log_every == 0:
                history.append(metrics)
                with tool.phase("log", update):
                    write_figures(history, folder)
            if update and update % dose.eval_every == 0:
                with tool.phase("eval", update):
                    evaluate(agent)
            if update and update % dose.save_every == 0:
                with tool.phase("save", update):
                    save(agent, optimizer, replay, folder)
    env.close()

    def learn(batch: dict[str, torch.Tensor]) -> None:
        loss = agent(batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for _ in range(dose.questions):
            loss.item()

    tool.finish(learn, batch)
    return update


@contextlib.contextmanager
def injected(dose: Dose) -> Iterator[None]:
    """Injects the faults that are not in the loop itself: slow environments and slow host-device synchronisations."""
    item = torch.Tensor.item
    os.environ |= {envs.COST_MS: str(dose.env_ms)}

    def slow(tensor: torch.Tensor) -> Any:
        time.sleep(dose.question_ms / 1e3)
        return item(tensor)

    if dose.question_ms:
        torch.Tensor.item = slow  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        torch.Tensor.item = item  # type: ignore[method-assign]
        del os.environ[envs.COST_MS]


def run(dose: Dose, tool: Untimed, seconds: float, device: str = "cpu") -> dict[str, Any]:
    """Runs the loop and returns the verdict of the tool, if the tool reports it in this process."""
    with tempfile.TemporaryDirectory() as folder, injected(dose):
        updates = train(dose, tool, seconds, Path(folder), torch.device(device))
        return {"updates": updates, "dose": dataclasses.asdict(dose), **tool.verdict()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dose", type=json.loads, default={}, help="fields of Dose as JSON")
    parser.add_argument("--tool", choices=TOOLS, default="powerband")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, help="file for the result as JSON")
    options = parser.parse_args()
    result = run(Dose(**options.dose), TOOLS[options.tool](), options.seconds, options.device)
    if options.out:
        options.out.write_text(json.dumps(result))
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
