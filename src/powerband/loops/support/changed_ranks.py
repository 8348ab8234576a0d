"""Changed ranks: how a loop continues a checkpoint that another number of ranks has saved.

Sizes over all ranks stay, so the update ratio and the global batch keep their meaning. Environments start new episodes.
"""

from __future__ import annotations

import hashlib
from typing import Any

from powerband.core.run.run import Run
from powerband.data.episode_tracker import EpisodeTracker
from powerband.data.types import VecEnv
from powerband.loops.support.loop_state import LoopState
from powerband.loops.support.reward_scale import RewardScale


def register_episodes(run: Run, env: VecEnv, tracker: EpisodeTracker, position: LoopState) -> None:
    """Registers what belongs to the current episodes. None of it continues on another number of ranks."""

    def keep_pending_updates(states: list[dict[str, Any]]) -> None:
        position.pending_updates = states[0]["owed"]

    def count_ended(states: list[dict[str, Any]]) -> None:
        if run.ranks.leads:
            tracker.ended.copy_(sum(state["ended"] for state in states))

    run.register("env", env, redistribute=lambda states: None)
    run.register("tracker", tracker, redistribute=count_ended)
    run.register("position", position, redistribute=keep_pending_updates)


def continue_episodes(
    run: Run, env: VecEnv, tracker: EpisodeTracker, position: LoopState, scale: RewardScale | None = None
) -> None:
    """Continues the episodes of a loaded checkpoint, or starts new ones if the number of ranks has changed.

    New episodes have a seed of their own, because those of the seed of the run have been played before.
    The discounted returns of `scale` start at 0 in new episodes.
    """
    if not run.ranks_changed:
        position.resume(env, tracker)
        if scale is not None:
            scale.discard(~env.resumed)
        return
    digest = hashlib.sha256(f"{run.settings.seed}/{run.env_steps}/{run.ranks.world_size}".encode()).digest()
    position.obs = env.reset(int.from_bytes(digest[:4], "little") // 2)
