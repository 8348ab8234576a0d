"""RDTLearner: learns a transformer of action chunks from demonstrations with instructions and images.

The transformer is a diffusion model, or it predicts the mean chunk (`RDTConfig.objective`).

Source: Liu et al. 2024, arXiv 2410.07864, section 4 and appendix; noise schedules and samplers are as in diffusers.
Suffixes: R rows, T actions of a chunk, V entries of a unified action vector.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from powerband.algos.chunks.diffusion import noise_schedule, sample_chunks
from powerband.algos.ema import ema_copy, update_ema
from powerband.core.errors import ConfigError
from powerband.core.optim.deepspeed import adam_for_launcher
from powerband.core.rank_context import RankContext
from powerband.data.types import Tree, tree_map
from powerband.recipes.libero.nets.freezing import freeze_weights
from powerband.recipes.libero.nets.image_jitter import NUM_JITTER_PARAMS
from powerband.recipes.libero.nets.rdt_policy import RDTPolicy
from powerband.recipes.libero.settings import RDTConfig


class RDTLearner:
    """Learner for the offline loop: trains an `RDTPolicy` on recorded action chunks, and samples chunks to act.

    A chunk is a sequence of T consecutive actions.

    Attributes:
        policy: Policy that is trained.
        acting: Copy of the policy whose weights are averaged over updates; it samples the chunks.
        updates: Number of updates so far.
        state_spread: Standard deviations (V,) of normalised states, to which the noise on states is relative; 1 if
            states are normalised by their standard deviation.
    """

    def __init__(self, config: RDTConfig, policy: RDTPolicy, context: RankContext) -> None:
        """
        Args:
            config: Settings of the learner.
            policy: Policy to train; its statistics and instructions may be set later.
            context: Device, precision, random numbers and ranks.

        Raises:
            ConfigError: The chunks of the policy do not have ``config.horizon`` actions.
        """
        if policy.shape.horizon != config.horizon:
            raise ConfigError(
                f"rdt.horizon={config.horizon} does not match this policy, whose chunks have {policy.shape.horizon} "
                f"actions. Write rdt.horizon={policy.shape.horizon}."
            )
        assert bool(config.keyframe_coef) == bool(policy.keyframe_entries), "keyframes: the policy must predict them"
        self.config, self.ranks = config, context.ranks
        self.precision, self.noise = context.precision, context.noise
        self.policy = policy.to(context.device)
        self.policy.model.gradient_checkpointing = config.gradient_checkpointing
        freeze_weights(self.policy, config.freeze)
        self.acting = ema_copy(self.policy)
        if config.compile:
            for block in self.policy.model.blocks:  # the blocks share one compiled function
                block.compile()
        self.adam = adam_for_launcher(
            self.policy,
            config.lr,
            ranks=context.ranks,
            precision=context.precision,
            weight_decay=config.weight_decay,
            betas=config.betas,
            eps=config.eps,
            max_grad_norm=config.max_grad_norm,
            factored=config.optimizer == "factored",
        )
        self.schedule = noise_schedule(config) if config.objective == "diffusion" else None
        self.updates = 0
        self.state_spread: Tensor | float = 1.0

    @property
    def device(self) -> torch.device:
        """Device of batches and observations."""
        return self.ranks.device

    def set_instructions(self, tokens: Tensor, token_mask: Tensor) -> None:
        """Sets the instructions of `policy` and `acting`.

        Args:
            tokens: Tokens of K instructions, (K, L tokens, features of the text encoder).
            token_mask: Mask (K, L) bool of the tokens, True for tokens and False for padding.
        """
        for policy in (self.policy, self.acting):
            policy.set_instructions(tokens, token_mask)

    def update(self, batch: dict[str, Tree]) -> dict[str, Tensor]:
        """Takes one step of the optimiser on demonstrated chunks.

        The loss is the mean over all entries that count in the batches of all ranks: entries that an action has, of
        steps before the episode's end. It depends neither on the number of ranks nor on the accumulated parts.

        Args:
            batch: obs, see `RDTPolicy`; action (R rows, T steps, V entries) float32, not normalised; action_mask (R, V)
                bool, the entries that actions have; valid (R, T) bool, the steps before the episode's end. With
                ``config.keyframe_coef``, also keyframe (R, 3), positions of the end effector in metres. Further keys
                are ignored.

        Returns:
            ``losses/rdt``, the loss of the chunks, and ``losses/grad_norm``, the norm of the gradient: detached tensors
            (). With ``config.keyframe_coef``, also ``losses/keyframe``, the mean squared error of the predicted
            positions in units of their standard deviation.
        """
        config, action_mask, valid = self.config, batch["action_mask"], batch["valid"]
        counts = action_mask.unsqueeze(1) & valid.unsqueeze(2)
        chunk = self.acting.normalize("action", batch["action"], counts)
        rows = len(chunk)
        noisy, step = self._noisy(chunk)
        inputs = {
            "obs": batch["obs"],
            "noisy": noisy,
            "action_mask": action_mask,
            "step": step,
            "hidden": self._hidden(batch["obs"]),
            "chunk": chunk,
            "counts": counts,
        }
        if config.keyframe_coef:
            inputs["keyframe"] = self.acting.keyframe_target(batch["keyframe"])
        # Ranks average their gradients: each rank divides its sum by the mean of the ranks' counts.
        count = self.ranks.average_(counts.sum().to(chunk.dtype)).clamp(min=1)
        self.adam.lr = config.lr * min(1.0, (self.updates + 1) / max(1, config.lr_warmup_updates))
        parts, total = min(config.gradient_accumulation_steps, rows), torch.zeros_like(count)
        keyframe_total = torch.zeros_like(count)
        for number in range(parts):
            piece = slice(number * rows // parts, (number + 1) * rows // parts)
            part = tree_map(lambda leaf, piece=piece: leaf[piece], inputs)
            with self.adam.accumulation_step(last=number == parts - 1):
                arguments = (part[name] for name in ("obs", "noisy", "action_mask", "step", "hidden"))
                prediction, keyframe = self.adam.forward(*arguments)
                loss = torch.where(part["counts"], prediction - part["chunk"], 0.0).square().sum() / count
                total += loss.detach()
                if config.keyframe_coef:
                    keyframe_loss = (keyframe - part["keyframe"]).square().sum() / (rows * keyframe.shape[1])
                    keyframe_total += keyframe_loss.detach()
                    loss = loss + config.keyframe_coef * keyframe_loss
                norm = self.adam.step(loss)
        update_ema(self.acting, self.policy, min(config.ema_max, 1 - (1 + self.updates) ** -config.ema_power))
        self.updates += 1
        figures = {"losses/rdt": total, "losses/grad_norm": norm}
        return figures | {"losses/keyframe": keyframe_total} if config.keyframe_coef else figures

    def _noisy(self, chunk: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the inputs of the network for clean chunks (R, T, V): noisy chunks, and diffusion steps (R,)."""
        rows = len(chunk)
        if self.schedule is None:
            return self._without_noise(rows)
        noise = self.noise("rdt/noise", rows).normal(*chunk.shape[1:])
        step = self.noise("rdt/step", rows).integers(self.config.noise_steps).view(-1)
        return self.schedule.add_noise(chunk, noise, step), step

    def _without_noise(self, rows: int) -> tuple[Tensor, Tensor]:
        """Returns the inputs of regression: zeros as noisy chunks (R, T, V), and as diffusion steps (R,)."""
        shape = self.policy.shape
        chunk = torch.zeros(rows, shape.horizon, shape.vector, device=self.device)
        return chunk, torch.zeros(rows, dtype=torch.int64, device=self.device)

    def _hidden(self, obs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Draws the random masks, state noise and image jitter of a batch: the argument `hidden` of the policy."""
        config, rows = self.config, len(obs["state"])
        image_mask = obs.get("image_mask")
        frames, cameras = (0, 0) if image_mask is None else image_mask.shape[1:]
        hide = self.noise("rdt/hidden", rows).uniform(3 + frames * cameras) < config.drop_condition
        noise = self.noise("rdt/state", rows).normal(obs["state"].shape[1])
        hidden = {"state": hide[:, 0], "language": hide[:, 1], "hz": hide[:, 2]}
        hidden["state_noise"] = noise * 10 ** (-config.state_snr_db / 20) * self.state_spread
        if image_mask is not None:
            hidden["images"] = hide[:, 3:].view(rows, frames, cameras)
        if "images" in obs and config.augment:
            draws = self.noise("rdt/jitter", rows).uniform(cameras, NUM_JITTER_PARAMS + 1)
            hidden["jitter"] = (2 * draws[..., 1:] - 1) * (draws[..., :1] < config.augment)
        return hidden

    @torch.no_grad()
    def act(
        self, obs: dict[str, Tensor], carry: Tensor | None, explore: bool
    ) -> tuple[Tensor, dict[str, Tensor], None]:
        """Samples one chunk of T actions for each of R observations, or predicts the mean chunk (regression).

        Args:
            obs: Observations of `RDTPolicy`. An optional ``action_mask`` (R rows, V entries) bool marks the
                entries that actions have; the default is the policy's.
            carry: Not used; the policy has no memory.
            explore: Not used; a diffusion policy always samples, and regression never does.

        Returns:
            Actions (R, T steps, V), not normalised, 0 in entries that actions do not have; a dict with ``action_mask``
            and ``valid``, as `update` expects them; and None, because the policy has no memory.
        """
        policy, rows = self.acting, len(obs["state"])
        action_mask = obs.get("action_mask", policy.action_mask.expand(rows, -1))
        with self.precision.autocast():
            conditioning = policy.condition(obs)
            if self.schedule is None:
                zeros, step = self._without_noise(rows)
                chunk = policy.denoise(conditioning, zeros, action_mask, step)
            else:
                noise = self.noise("rdt/sample", rows).normal(policy.shape.horizon, policy.shape.vector)
                chunk = sample_chunks(
                    self.config, noise, lambda noisy, step: policy.denoise(conditioning, noisy, action_mask, step)
                )
        valid = torch.ones_like(chunk[..., 0], dtype=torch.bool)
        action = policy.denormalize_actions(chunk, action_mask.unsqueeze(1))
        return action, {"action_mask": action_mask, "valid": valid}, None

    def initial_carry(self, num_envs: int) -> None:
        """Returns None: the policy has no memory."""

    def policy_state(self) -> dict[str, Tensor]:
        """Returns the state dict of `acting`: the averaged weights and the statistics of the recorded data."""
        return self.acting.state_dict()

    def gather(self) -> None:
        """Collects sharded weights on rank 0 for its next `state_dict`. All ranks must call it together."""
        self.adam.gather()

    def state_dict(self) -> dict[str, Any]:
        """Returns the training state for a checkpoint: live tensors, not copies.

        If weights are sharded, the first call on rank 0 after `gather` returns the complete state. Every other call
        returns the part of this rank.
        """
        return {
            "policy": self.adam.weights(),
            "acting": self.acting.state_dict(),
            "adam": self.adam.state_dict(),
            "noise": self.noise.state_dict(),
            "updates": self.updates,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a complete `state_dict`."""
        self.adam.load_weights(state["policy"])
        self.acting.load_state_dict(state["acting"])
        self.adam.load_state_dict(state["adam"])
        self.noise.load_state_dict(state["noise"])
        self.updates = int(state["updates"])
