"""Map metrics: computes the F1 score of the region of interest, and the mean entropy over it.

Parameter names: `s` is a `MissionArrays`, the state of all missions; `w` is a `WorldArrays`, the constants of the
world; `n` is the index of the mission in `s`; `k` is a map.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from powerband.envs.numba.hashing import inlined
from powerband.recipes.uav.env.world import FIXED_POINT_SCALE, MAX_BELIEF

EPISODE_METRICS = ("f1", "roi_entropy")
"""Names of the metrics of a mission."""


@inlined
def count_row(s, w, n, k, y):
    """Compares row `y` of map `k` of mission `n` with the hidden map.

    `s`: state of all missions; `w`: constants of the world. Map k < A is the belief of UAV k, map A that of
    the team of A UAVs.

    Returns:
        Four integers: the numbers of hits (cells correctly mapped as region of interest), false alarms (cells wrongly
        mapped as such) and misses (cells of the region that are not mapped as such), and the sum of the entropy in bits
        over the region of interest, times FIXED_POINT_SCALE.
    """
    hits, false, missed, entropy = 0, 0, 0, np.int64(0)
    for x in range(w.cells):
        belief, truth = np.int64(s.belief[n, k, y, np.uint32(x)]), np.int64(s.truth[n, y, np.uint32(x)])
        positive = np.int64(belief > 0)
        hits += positive & truth
        false += positive & (1 - truth)
        missed += (1 - positive) & truth
        entropy += truth * np.int64(w.entropy[np.uint32(belief + MAX_BELIEF)])
    return hits, false, missed, entropy


def map_metrics(counts: Tensor) -> dict[str, Tensor]:
    """Computes the metrics of N missions from counts of map cells.

    Args:
        counts: (N, 4) int64: the four results of `count_row`, summed over the rows of a map.

    Returns:
        ``f1``, the F1 score of the region of interest, and ``roi_entropy``, the mean entropy over it in bits; (N,)
        float32 each.
    """
    hits, false, missed, entropy = counts.double().unbind(1)
    f1 = 2 * hits / (2 * hits + false + missed).clamp(min=1)
    return {"f1": f1.float(), "roi_entropy": (entropy / FIXED_POINT_SCALE / (hits + missed).clamp(min=1)).float()}
