"""Computes observation, reward and success of the ten tasks of MT10 from positions, in one compiled loop.

No simulator is needed. `s` are the arrays of all simulations (`RewardArrays`) and `n` is the index of a simulation.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from numba import njit

from powerband.core.machine.cache_stamp import source_checksum
from powerband.recipes.metaworld.env.threads import observation, reward_terms, task_rewards
from powerband.recipes.metaworld.env.threads.observation import observe
from powerband.recipes.metaworld.env.threads.reward_terms import RewardArrays
from powerband.recipes.metaworld.env.threads.task_rewards import reward_and_success


@cache
def reward_function() -> Callable[[RewardArrays, int, int], None]:
    """Returns the compiled function ``(arrays, first, last)`` for the ten tasks of MT10.

    It writes observation, reward and success of the simulations ``first`` to ``last`` - 1 of ``arrays``.
    """
    made_of = source_checksum(observation, reward_terms, task_rewards)

    @njit(nogil=True, cache=True)
    def write_rewards(s, first, last):
        for n in range(first + 0 * made_of, last):
            observe(s, n)
            s.reward[n], s.success[n] = reward_and_success(s, n)

    return write_rewards
