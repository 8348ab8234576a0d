"""MinAtar's games as Gymnasium environments with planes (10, 10, C) bool, with a limit of 5,000 steps.

A good deterministic policy may keep an episode alive for a very long time, so MinAtar's own ids have no end for an
evaluation. Everything else is MinAtar's default: sticky actions of 0.1, rising difficulty, the smallest action set.
"""

from __future__ import annotations

from gymnasium.envs.registration import register

for game in ("breakout", "space_invaders"):
    register(
        f"MinAtar/{game.title().replace('_', '')}-v1",
        "minatar.gym:BaseEnv",
        max_episode_steps=5_000,
        kwargs={"game": game, "use_minimal_action_set": True},
    )
