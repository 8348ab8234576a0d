"""Linear probe: measures how well codes of trajectories separate the tasks, compared with those of a random encoder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from powerband.recipes.metaworld.config import Config
from powerband.recipes.metaworld.nets.trajectory import TrajectoryEncoder
from powerband.recipes.metaworld.transitions.dataset import TransitionDataset

PROBE_ROWS = 4000
"""Largest number of trajectories to fit a probe on, and to test it on."""


def probe(
    config: Config,
    recorded: TransitionDataset,
    train: Tensor,
    held_out: Tensor,
    encoder: TrajectoryEncoder,
    folder: Path,
) -> dict[str, Any]:
    """Measures how well a linear map predicts the task from the code z of a trajectory, and draws ``tasks.png``.

    The image shows the codes of held-out trajectories on their two principal axes.

    Args:
        config: Seed of the run.
        recorded: Recorded transitions of all tasks; a row is one transition, at which a trajectory ends.
        train, held_out: Indices of the rows to fit on and to test on, int64.
        encoder: The trained encoder; it is moved to the CPU.
        folder: Folder for the image.

    Returns:
        A dict: ``probe`` and ``probe_random`` are the accuracies (0..1) with the codes of the encoder, and of an
        encoder with random weights. ``chance`` is the accuracy of always predicting the most frequent task. ``tasks``
        are the names of the tasks, and ``held_out`` is the number of tested rows.
    """
    encoder = encoder.cpu()
    generator = torch.Generator().manual_seed(config.run.seed)
    chosen = [rows[torch.randperm(len(rows), generator=generator)[:PROBE_ROWS]] for rows in (train, held_out)]
    batches = [
        {name: part.cpu() for name, part in recorded.trajectories(rows, encoder.config.length, whole=True).items()}
        for rows in chosen
    ]
    random = TrajectoryEncoder(encoder.config)
    codes = {name: [net.encode(batch) for batch in batches] for name, net in (("", encoder), ("_random", random))}
    tasks = [batch["task"] for batch in batches]
    figures: dict[str, Any] = {
        f"probe{name}": linear_probe(z[0], tasks[0], z[1], tasks[1]) for name, z in codes.items()
    }
    figures["chance"] = float(torch.bincount(tasks[1]).max() / len(tasks[1]))
    figures |= {"tasks": list(recorded.tasks), "held_out": len(tasks[1])}
    _draw(codes[""][1], tasks[1], recorded.tasks, figures["probe"], folder / "tasks.png")
    return figures


def linear_probe(z: Tensor, task: Tensor, z_test: Tensor, task_test: Tensor) -> float:
    """Fits a multinomial logistic regression from codes to tasks, and returns its accuracy (0..1) on test codes.

    Args:
        z, z_test: Codes to fit on and to test on, each (n codes, Z entries).
        task, task_test: Index of the task of each code, (n,) int64.
    """
    mean, std = z.mean(0), z.std(0).clamp(min=1e-6)
    z, z_test = (z - mean) / std, (z_test - mean) / std
    linear = torch.nn.Linear(z.shape[1], int(max(task.max(), task_test.max())) + 1)
    torch.nn.init.zeros_(linear.weight)
    torch.nn.init.zeros_(linear.bias)
    optimiser = torch.optim.LBFGS(linear.parameters(), max_iter=200, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimiser.zero_grad()
        value = torch.nn.functional.cross_entropy(linear(z), task) + 1e-4 * linear.weight.square().sum()
        value.backward()
        return value

    optimiser.step(loss)
    with torch.no_grad():
        return float((linear(z_test).argmax(1) == task_test).float().mean())


def _draw(z: Tensor, task: Tensor, names: tuple[str, ...], accuracy: float, path: Path) -> None:
    """Draws n codes `z` (n, Z entries) on their two principal axes, one colour per task; saves the image at `path`."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    centred = z - z.mean(0)
    axes = torch.linalg.svd(centred, full_matrices=False)[2][:2]
    xy = (centred @ axes.T).numpy()
    figure, axis = pyplot.subplots(figsize=(6.4, 5.2), layout="constrained")
    for index, name in enumerate(names):
        own = (task == index).numpy()
        axis.scatter(xy[own, 0], xy[own, 1], s=4, alpha=0.5, label=name)
    axis.set(xlabel="first principal axis of z", ylabel="second principal axis of z")
    axis.set_title(f"Codes of held-out trajectories; accuracy of a linear probe: {accuracy:.1%}", fontsize=10)
    axis.legend(markerscale=3, fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
