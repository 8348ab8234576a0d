"""Seeds of episodes: every environment has its own stream, which does not depend on processes or ranks."""

from __future__ import annotations

from typing import Any

_MASK = (1 << 64) - 1


def episode_seed(seed: int, env_id: int, episode: int) -> int:
    """Computes the seed that an episode is reset with.

    One round of splitmix64 per number folds the three numbers into 64 bits. The upper 31 bits are the seed,
    because some simulators refuse larger seeds. The number of ranks, workers or environments therefore changes no
    episode, and a resume can repeat an episode.

    Args:
        seed: Seed of the run, any integer.
        env_id: Global index of the environment over all ranks, >= 0.
        episode: Index of the episode in its environment since `reset`, >= 0.

    Returns:
        An integer in [0, 2**31).

    Source: Steele, Lea, Flood 2014, Fast splittable pseudorandom number generators (finaliser of splitmix64).
    """
    bits = 0
    for part in (seed, env_id, episode):
        bits = _mix((bits ^ (part & _MASK)) + 0x9E3779B97F4A7C15)
    return bits >> 33


def reset_options(env: Any, episode: int) -> dict[str, Any]:
    """Returns further arguments of ``env.reset``: the index of the episode, for environments that start by it.

    Such an environment has the attribute ``starts_by_episode = True`` and reads ``options["episode"]``. If it counted
    its episodes itself, an environment that replaces a failed one would begin again with the first start.

    Args:
        env: Gymnasium environment, which may be wrapped.
        episode: Index of the episode in its environment since the reset of all environments, >= 0.
    """
    declared = getattr(getattr(env, "unwrapped", env), "starts_by_episode", False)
    return {"options": {"episode": episode}} if declared else {}


def _mix(bits: int) -> int:
    """Finaliser of splitmix64 on the lower 64 bits."""
    bits &= _MASK
    bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB & _MASK
    return bits ^ (bits >> 31)
