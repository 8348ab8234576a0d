"""Plot of a benchmark: draws steps/s, updates/s and idle share per case as bars, with the range over rounds."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from powerband.core.errors import ConfigError


def save_plot(result: dict[str, Any], path: Path) -> Path:
    """Draws the rows of a benchmark as bars and writes them to an image file, such as a PNG.

    Args:
        result: Result of a benchmark, see `powerband.bench.harness.result`.
        path: File of the plot.

    Returns:
        `path`.

    Raises:
        ConfigError: The file cannot be written.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rows = result["rows"]
    panels = {
        "steps_per_s": "env steps/s",
        "updates_per_s": "updates/s",
        "idle": "share of wall time in which the learner is idle",
    }
    panels = {key: title for key, title in panels.items() if any(row.get(key) is not None for row in rows)}
    figure, axes = plt.subplots(1, len(panels), figsize=(1.2 + 3.6 * len(panels), 3.2), squeeze=False)
    names = [row["case"] for row in rows]
    for axis, (key, title) in zip(axes[0], panels.items(), strict=True):
        spread = [
            [measured[key] for measured in row["rounds"] if measured.get(key) is not None] or [row.get(key) or 0.0]
            for row in rows
        ]
        heights = [row.get(key) or 0.0 for row in rows]
        below = [height - min(values) for height, values in zip(heights, spread, strict=True)]
        above = [max(values) - height for height, values in zip(heights, spread, strict=True)]
        axis.bar(names, heights, color="#1f6f8b", width=0.6)
        axis.errorbar(names, heights, [below, above], fmt="none", ecolor="#1f2a30", capsize=3, linewidth=1)
        axis.set_title(title, fontsize=9, loc="left")
        axis.tick_params(labelsize=8)
        axis.set_xticks(range(len(names)), names, rotation=20 if max(map(len, names)) > 8 else 0, ha="center")
        axis.spines[["top", "right"]].set_visible(False)
        axis.set_ylim(bottom=0)
    gpus = ", ".join(gpu["name"] for gpu in result["host"]["gpus"]) or "no GPU"
    host = f"{result['host']['cpu']}, {result['host']['cores']} cores, {gpus}"
    figure.suptitle(f"{result['bench']}: {' '.join(result['words'])}  ({host})", fontsize=8, color="#5d6b73")
    figure.tight_layout()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as error:
        raise ConfigError(f"plot={path} cannot be written ({error}). Name a file such as plot=bench.png.") from error
    finally:
        plt.close(figure)
    return path


def try_plot(save: Callable[[], object], path: str) -> None:
    """Saves the plot of a finished benchmark; if that fails, a note on standard error states why.

    The result of the measurements is more important than its plot, so no error is raised.

    Args:
        save: Function that draws and writes the plot.
        path: File of the plot; "" saves none.
    """
    if not path:
        return
    try:
        save()
    except (ConfigError, ImportError, OSError, ValueError, RuntimeError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0].rstrip(". ")
        print(f"powerband: no plot was written: {reason}. The measurements are complete.", file=sys.stderr)
    else:
        print(f"plot: {path}")
