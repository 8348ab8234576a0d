"""How good a map is: entropy where the region of interest really is, and F1 of finding it. Names as in `rules`."""

from __future__ import annotations

import numpy as np

from powerband.envs.hashing import inlined

from .world import LIMIT, SCALE


@inlined
def count_row(s, w, n, k, y):
    """Row `y` of map `k`: (hits, false alarms, misses, entropy over the region of interest in 1 / SCALE)."""
    hits, false, missed, entropy = 0, 0, 0, np.int64(0)
    for x in range(w.cells):
        belief, truth = np.int64(s.belief[n, k, y, np.uint32(x)]), np.int64(s.truth[n, y, np.uint32(x)])
        found = np.int64(belief > 0)
        hits += found & truth
        false += found & (1 - truth)
        missed += (1 - found) & truth
        entropy += truth * np.int64(w.entropy[np.uint32(belief + LIMIT)])
    return hits, false, missed, entropy


FIGURES = ("f1", "roi_entropy")


def figures_of(counts):
    """Counts (N, 4) int64 as figures (N,) float32 each: F1 of the region of interest, mean entropy over it in bits."""
    hits, false, missed, entropy = counts.double().unbind(1)
    f1 = 2 * hits / (2 * hits + false + missed).clamp(min=1)
    return {"f1": f1.float(), "roi_entropy": (entropy / SCALE / (hits + missed).clamp(min=1)).float()}
