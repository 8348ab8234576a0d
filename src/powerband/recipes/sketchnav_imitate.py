"""Imitation in sketchnav: a diffusion policy, or cloning, learns action chunks from the follower's demonstrations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from powerband.algos.chunks import Chunks
from powerband.core.config import ConfigError
from powerband.core.scaling import scaled_lr
from powerband.data.demonstrations import Demonstrations
from powerband.data.feed import Feed
from powerband.data.recording import read_recording
from powerband.envs.sketchnav.env import EXACT, SketchNavEnv
from powerband.loops.offline import offline
from powerband.recipes.sketchnav_demos import pictures_of
from powerband.recipes.sketchnav_learners import imitator
from powerband.recipes.sketchnav_sets import episodes_of, seed_of

if TYPE_CHECKING:
    from powerband.core.run import Run
    from powerband.recipes.sketchnav import Config


def train(config: Config, run: Run, held_out: Callable[..., Any]) -> None:
    """Trains on the recording in `demos_dir`; `held_out` (config, learner, device) evaluates during training."""
    demonstrations = demonstrations_of(config)
    ranks, sketches = run.ranks, episodes_of(config, "train", run.console).sketch.to(run.device)
    section, run.facts["learning rates"] = scaled_lr(config.chunks, config.run.lr_scale, ranks.world_size)
    config = replace(config, chunks=section)
    learner = imitator(config, sketches, ranks, run.precision, run.noise)
    run.facts["demonstrations"] = (
        f"{demonstrations.rows:,} steps of {len(demonstrations.fields['episode'].unique()):,} episodes, "
        f"{config.scenes.sketch} sketches of {sketches.shape[-1]} pixels"
    )
    run.evaluate = held_out(config, learner, run.device)
    batch = config.offline.batch(ranks.world_size)
    order = (config.run.seed, ranks.rank, ranks.world_size, config.offline.loader_threads)
    offline(run, learner, Feed(demonstrations.rows, batch, demonstrations, run.device, *order), config.offline)
    run.export_policy(learner.policy_state())


def demonstrations_of(config: Config) -> Demonstrations:
    """The recording in `demos_dir`.

    Raises:
        ConfigError: No recording, or one of other plans, rules or pictures; which, and what to do.
    """
    if not config.demos_dir:
        raise ConfigError(
            f"algo={config.algo} learns from demonstrations: record them with `powerband train sketchnav demos "
            f"demos_dir=demos`, then write demos_dir=demos here too."
        )
    wanted = pictures_of(config)
    fields, facts = read_recording(Path(config.demos_dir), (*wanted, "gps", "compass", "action", "episode"))
    used = {"pixels": config.pixels, "scenes": asdict(config.scenes), "rules": asdict(config.rules)}
    used["sensors"], facts = asdict(config.sensors), {"sensors": asdict(EXACT), **facts}
    for name, here in {**used, "seed": seed_of(config)}.items():
        there = facts[name]
        if name == "scenes":  # whoever draws them, the sketches change neither ways nor pictures
            here, there = ({k: v for k, v in of.items() if not k.startswith("sketch")} for of in (here, there))
        if here != there:
            fix = f" Write scene_seed={there}." if name == "seed" else ""
            raise ConfigError(
                f"demos_dir={config.demos_dir} was recorded with {name} {there}, this run has {here}.{fix}"
            )
    return Demonstrations(fields, wanted, config.chunks.frames, config.chunks.horizon)


class ChunkWalker:
    """A policy of chunks in the world: remembers the newest pictures, and takes the first actions of each chunk.

    Args:
        learner: Makes chunks.
        execute: Actions of a chunk that are taken before the next is made; 0 is as the learner was trained.
    """

    def __init__(self, learner: Chunks, execute: int = 0) -> None:
        self.learner = learner
        self.pictures = tuple(name for name in ("rgb", "depth") if getattr(learner.encoder, name) is not None)
        self.execute = execute or learner.config.execute
        self.past: dict[str, Tensor] = {}
        self.chunk = self.taken = torch.empty(0)

    def __call__(self, env: SketchNavEnv, obs: dict[str, Tensor], memory: None) -> tuple[Tensor, None]:
        """(N,) int64 actions."""
        new = env.agents.made == 0
        if not self.past:
            new = torch.ones_like(new)
            self.chunk = torch.zeros(env.num_envs, self.learner.config.horizon, dtype=torch.int64, device=env.device)
            self.taken = torch.zeros(env.num_envs, dtype=torch.int64, device=env.device)
        for name in self.pictures:
            self.past[name] = self._newest(self.past.get(name), obs[name], new)
        due = (new | (self.taken >= self.execute)).nonzero()[:, 0]
        if len(due):
            known = {name: obs[name][due] for name in ("gps", "compass", "episode")}
            known |= {name: self.past[name][due].flatten(1, 2) for name in self.pictures}
            self.chunk[due] = self.learner.act(known, None, explore=False)[0]
            self.taken[due] = 0
        action = self.chunk.gather(1, self.taken.unsqueeze(1))[:, 0]
        self.taken += 1
        return action, None

    def _newest(self, past: Tensor | None, now: Tensor, new: Tensor) -> Tensor:
        """(N, frames, C, S, S), oldest first; the first picture of an episode stands for those before it."""
        repeated = now.unsqueeze(1).repeat(1, self.learner.config.frames, 1, 1, 1)
        if past is None:
            return repeated
        moved = torch.cat([past[:, 1:], now.unsqueeze(1)], 1)
        return torch.where(new.view(-1, 1, 1, 1, 1), repeated, moved)
