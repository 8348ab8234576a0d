"""The plot of a benchmark: a bar a case with the spread of its rounds: steps/s, updates/s, idle share."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def save_plot(result: dict[str, Any], path: Path) -> Path:
    """Writes a PNG of a benchmark's rows; returns `path`.

    Raises:
        ValueError: It cannot be written.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rows = result["rows"]
    panels = {"steps_per_s": "env steps/s", "updates_per_s": "updates/s", "idle": "learner idle, share of wall time"}
    panels = {figure: title for figure, title in panels.items() if any(row.get(figure) is not None for row in rows)}
    figure, axes = plt.subplots(1, len(panels), figsize=(1.2 + 3.6 * len(panels), 3.2), squeeze=False)
    names = [row["case"] for row in rows]
    for axis, (key, title) in zip(axes[0], panels.items(), strict=True):
        spread = [
            [one[key] for one in row["rounds"] if one.get(key) is not None] or [row.get(key) or 0.0] for row in rows
        ]
        heights = [row.get(key) or 0.0 for row in rows]
        below = [height - min(parts) for height, parts in zip(heights, spread, strict=True)]
        above = [max(parts) - height for height, parts in zip(heights, spread, strict=True)]
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
        raise ValueError(f"plot={path} cannot be written ({error}). Name a file such as plot=bench.png.") from error
    finally:
        plt.close(figure)
    return path
