"""How well the code of a trajectory tells tasks apart: a linear probe beside a random encoder, and a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from powerband.nets.trajectory import TrajectoryEncoder
from powerband.recipes.metaworld import Config
from powerband.recipes.metaworld_learn import Recorded

PROBED = 4000
"""Trajectories of each half of a probe at most."""


def probe(
    config: Config, recorded: Recorded, train: Tensor, held_out: Tensor, encoder: TrajectoryEncoder, folder: Path
) -> dict[str, Any]:
    """How well a linear map reads the task off the code, on held-out pieces; a random encoder beside it.

    Writes a picture of the codes, on their two main axes, to ``tasks.png``.

    Returns:
        ``probe``, ``probe_random``: accuracies; ``chance``: of naming the most frequent task.
    """
    encoder = encoder.cpu()
    generator = torch.Generator().manual_seed(config.run.seed)
    chosen = [rows[torch.randperm(len(rows), generator=generator)[:PROBED]] for rows in (train, held_out)]
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
    """Accuracy on the second half of a multinomial logistic regression fitted on the first."""
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
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    centred = z - z.mean(0)
    axes = torch.linalg.svd(centred, full_matrices=False)[2][:2]
    xy = (centred @ axes.T).numpy()
    figure, axis = pyplot.subplots(figsize=(6.4, 5.2), layout="constrained")
    for index, name in enumerate(names):
        own = (task == index).numpy()
        axis.scatter(*xy[own].T, s=4, alpha=0.5, label=name)
    axis.set(xlabel="first axis of z", ylabel="second axis of z")
    axis.set_title(f"codes of held-out trajectories; a linear probe names the task in {accuracy:.1%}", fontsize=10)
    axis.legend(markerscale=3, fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
