"""Representation: a trajectory's code is learned by filling in what is masked, and by telling tasks apart.

Source: masked modelling as Devlin et al. 2019, section 3.1 (80 / 10 / 10); contrast as van den Oord et al. 2018, eq. 4.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from powerband.core.flat import FlatAdam
from powerband.core.noise import NoiseSource
from powerband.core.precision import Precision
from powerband.nets.trajectory import PARTS, EncoderConfig, TrajectoryEncoder


@dataclass(frozen=True)
class RepresentConfig:
    lr: float = 2e-4
    """Adam learning rate."""
    mask: float = 0.15
    """Share of the tokens that are masked; of these 80 % show nothing, 10 % another's content, 10 % their own."""
    contrast: float = 0.25
    """Weight of the contrast between two views beside the mean squared errors."""
    temperature: float = 0.15
    """Of the contrast."""
    max_grad_norm: float = 0.0
    """Largest norm of the gradient; 0 does not clip."""
    net: EncoderConfig = field(default_factory=EncoderConfig)


class Represent:
    """Learner of a `TrajectoryEncoder`."""

    def __init__(
        self,
        config: RepresentConfig,
        device: torch.device | str,
        precision: Precision,
        noise: NoiseSource,
        average: Callable[[Tensor], object] | None = None,
        world_size: int = 1,
    ) -> None:
        self.config, self.precision, self.noise = config, precision, noise
        self.encoder = TrajectoryEncoder(config.net).to(device)
        clip = config.max_grad_norm or None
        self.updates = 0
        self.adam = FlatAdam([self.encoder], config.lr, precision=precision, average=average, max_grad_norm=clip)

    def update(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """One step on two views of the same trajectories, masked apart.

        Args:
            batch: As `TrajectoryEncoder` takes them, and ``task`` (B,) int64.

        Returns:
            0-d figures, detached.
        """
        # Dropout draws from torch's own generator: seeded by update and rank, a resume draws what it would have drawn.
        torch.manual_seed((self.noise.seed * 1_000_003 + self.noise.rank) * 1_000_003 + self.updates)
        self.updates += 1
        with self.precision.autocast():
            errors, codes = zip(*(self._view(batch, f"represent/view{number}") for number in (1, 2)), strict=True)
            contrast = info_nce(*codes, batch["task"], self.config.temperature)
            filled = (errors[0] + errors[1]) / 2
            loss = filled.sum() + self.config.contrast * contrast
        norm = self.adam.step(loss)
        parts = {f"losses/{part}": filled[index].detach() for index, part in enumerate(PARTS)}
        return {
            "losses/represent": loss.detach(),
            "losses/contrast": contrast.detach(),
            "losses/grad_norm": norm,
        } | parts

    def _view(self, batch: dict[str, Tensor], purpose: str) -> tuple[Tensor, Tensor]:
        """Mean squared errors (3,) at what is masked, and the code (B, Z)."""
        shown, masked = {}, {}
        for part in PARTS:
            content = batch[part]
            steps = content.shape[1]
            draw = self.noise(f"{purpose}/{part}", len(content)).uniform(steps, 2)
            there = torch.arange(steps, device=content.device) < (batch["length"] - int(part != "state")).unsqueeze(1)
            masked[part] = (draw[..., 0] < self.config.mask) & there
            kind = draw[..., 1].unsqueeze(-1)
            seen = torch.where(
                kind < 0.8, torch.zeros_like(content), torch.where(kind < 0.9, content.roll(1, 0), content)
            )
            shown[part] = torch.where(masked[part].unsqueeze(-1), seen, content)
        code, said = self.encoder(batch, shown)
        errors = []
        for part in PARTS:
            each = (said[part].float() - batch[part]).square().mean(-1)
            errors.append((each * masked[part]).sum() / masked[part].sum().clamp(min=1))
        return torch.stack(errors), code.float()

    def state_dict(self) -> dict:
        """Everything that training goes on from (live tensors, not copies)."""
        parts = {name: getattr(self, name).state_dict() for name in ("encoder", "adam", "noise")}
        return {**parts, "updates": self.updates}

    def load_state_dict(self, state: dict) -> None:
        """Restores `state_dict`, in place."""
        for name in ("encoder", "adam", "noise"):
            getattr(self, name).load_state_dict(state[name])
        self.updates = int(state["updates"])


def info_nce(one: Tensor, other: Tensor, task: Tensor, temperature: float) -> Tensor:
    """Contrast of two views (B, Z) of the same trajectories: each finds its other view among those of other tasks.

    Trajectories of the same task are no negatives of each other.

    Args:
        one, other: (B, Z) codes.
        task: (B,) int64.
        temperature: Divides the cosine similarities.
    """
    similar = F.normalize(one, dim=-1) @ F.normalize(other, dim=-1).T / temperature
    same = task.unsqueeze(0) == task.unsqueeze(1)
    same.fill_diagonal_(False)
    similar = similar.masked_fill(same, float("-inf"))
    target = torch.arange(len(one), device=one.device)
    return (F.cross_entropy(similar, target) + F.cross_entropy(similar.T, target)) / 2
