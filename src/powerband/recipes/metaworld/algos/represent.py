"""Representation: learns the code of a trajectory by predicting masked tokens and by separating tasks.

Source: masked modelling as Devlin et al. 2019, section 3.1 (80 / 10 / 10); contrast as van den Oord et al. 2018, eq. 4.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from powerband.core.optim.compile import compile_if
from powerband.core.optim.flat_adam import FlatAdam
from powerband.core.rank_context import RankContext
from powerband.recipes.metaworld.nets.trajectory import PARTS, TrajectoryEncoder
from powerband.recipes.metaworld.settings import RepresentConfig

MODULES = ("encoder", "adam", "noise")


class RepresentationLearner:
    """Trains a `TrajectoryEncoder` on recorded trajectories, with masked prediction and a contrastive loss."""

    def __init__(self, config: RepresentConfig, context: RankContext) -> None:
        """
        Args:
            config: Hyper-parameters.
            context: Device, precision, random numbers and gradient averaging of this rank.
        """
        self.config, self.precision, self.noise = config, context.precision, context.noise
        self.encoder = TrajectoryEncoder(config.net).to(context.device)
        self._encode_fn = compile_if(self.encoder, config.compile)
        clip = config.max_grad_norm or None
        self.updates = 0
        self.adam = FlatAdam(
            [self.encoder], config.lr, precision=context.precision, average=context.average, max_grad_norm=clip
        )

    def update(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Updates the encoder on two masked views of the same trajectories.

        Args:
            batch: ``state``, ``action``, ``reward`` and ``length`` of B trajectories, as `TrajectoryEncoder.forward`
                expects them, and ``task`` (B,) int64, the index of each trajectory's task.

        Returns:
            Losses and gradient norm by name: detached 0-d tensors.
        """
        # Dropout draws from torch's global generator. Seeding it by update and rank makes a resume exact.
        seed = (self.noise.seed * 1_000_003 + self.noise.rank) * 1_000_003 + self.updates
        torch.manual_seed(seed % 2**64)  # torch refuses larger seeds
        self.updates += 1
        with self.precision.autocast():
            error_1, code_1 = self._view(batch, "represent/view1")
            error_2, code_2 = self._view(batch, "represent/view2")
            contrast = info_nce(code_1, code_2, batch["task"], self.config.temperature)
            error = (error_1 + error_2) / 2
            loss = error.sum() + self.config.contrast * contrast
        norm = self.adam.step(loss)
        figures = {"losses/represent": loss.detach(), "losses/contrast": contrast.detach(), "losses/grad_norm": norm}
        return figures | {f"losses/{part}": error[index].detach() for index, part in enumerate(PARTS)}

    def _view(self, batch: dict[str, Tensor], purpose: str) -> tuple[Tensor, Tensor]:
        """Masks random tokens of the trajectories, and lets the encoder predict them.

        Args:
            batch: Batch of `update`.
            purpose: Name of the random streams of this view; each view has its own.

        Returns:
            Mean squared errors (3,) of masked states, actions and rewards, and the codes (B trajectories, Z entries).
        """
        shown, masked = {}, {}
        for part in PARTS:
            content = batch[part]
            steps = content.shape[1]
            draw = self.noise(f"{purpose}/{part}", len(content)).uniform(steps, 2)
            valid = torch.arange(steps, device=content.device) < (batch["length"] - int(part != "state")).unsqueeze(1)
            masked[part] = (draw[..., 0] < self.config.mask_ratio) & valid
            kind = draw[..., 1].unsqueeze(-1)
            replacement = torch.where(
                kind < 0.8, torch.zeros_like(content), torch.where(kind < 0.9, content.roll(1, 0), content)
            )
            shown[part] = torch.where(masked[part].unsqueeze(-1), replacement, content)
        code, predicted = self._encode_fn(batch, shown)
        errors = []
        for part in PARTS:
            each = (predicted[part].float() - batch[part]).square().mean(-1)
            errors.append((each * masked[part]).sum() / masked[part].sum().clamp(min=1))
        return torch.stack(errors), code.float()

    def state_dict(self) -> dict[str, Any]:
        """Returns the training state for a checkpoint: live tensors and numbers, not copies."""
        return {**{name: getattr(self, name).state_dict() for name in MODULES}, "updates": self.updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores `state_dict` in place."""
        for name in MODULES:
            getattr(self, name).load_state_dict(state[name])
        self.updates = int(state["updates"])


def info_nce(one: Tensor, other: Tensor, task: Tensor, temperature: float) -> Tensor:
    """Computes the contrastive loss (InfoNCE) of the codes of two views of each trajectory.

    The positive of a code is the code of the other view. Its negatives are the codes of trajectories of other tasks.

    Args:
        one, other: Codes (B, Z entries) of the two views of B trajectories.
        task: Task (B,) int64 of each trajectory.
        temperature: Divides the cosine similarities.

    Returns:
        0-d loss.
    """
    similarity = F.normalize(one, dim=-1) @ F.normalize(other, dim=-1).T / temperature
    same = task.unsqueeze(0) == task.unsqueeze(1)
    same.fill_diagonal_(False)
    similarity = similarity.masked_fill(same, float("-inf"))
    target = torch.arange(len(one), device=one.device)
    return (F.cross_entropy(similarity, target) + F.cross_entropy(similarity.T, target)) / 2
