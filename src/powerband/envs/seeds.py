"""Seeds of episodes: every environment draws from its own stream, whatever process or rank it lives in."""

from __future__ import annotations

_MASK = (1 << 64) - 1


def episode_seed(seed: int, env_id: int, episode: int) -> int:
    """Seed that an episode is reset with.

    The three numbers are folded into one 64-bit word, one splitmix64 round each, and the upper 31 bits are returned,
    because some simulators refuse larger seeds. Nothing else enters: the number of ranks, workers or environments
    changes no episode, and a resume can start the same episode again.

    Args:
        seed: Seed of the run, any integer.
        env_id: Global index of the environment over all ranks, >= 0.
        episode: Index of the episode in its environment since `reset`, >= 0.

    Returns:
        An integer in [0, 2**31).

    Source: Steele, Lea, Flood 2014, Fast splittable pseudorandom number generators (finaliser of splitmix64).
    """
    word = 0
    for part in (seed, env_id, episode):
        word = _mix((word ^ (part & _MASK)) + 0x9E3779B97F4A7C15)
    return word >> 33


def _mix(word: int) -> int:
    word &= _MASK
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB & _MASK
    return word ^ (word >> 31)
