"""ActionChunkLearner: imitation of action chunks from demonstrations, by diffusion or by cloning.

Source: Chi et al. 2023 ("Diffusion Policy"); Ho et al. 2020, equation 14. Noise schedules and samplers are diffusers'.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from powerband.algos.chunks.diffusion import noise_schedule, sample_chunks
from powerband.algos.chunks.settings import ChunkConfig
from powerband.algos.ema import ema_copy, feature_caches, update_ema
from powerband.core.optim.accelerate import AcceleratedAdam
from powerband.core.rank_context import RankContext
from powerband.data.types import EnvSpec, Tree
from powerband.nets.chunks.policy import ALL_ROWS, ChunkPolicy, by_sequence, nearest


class ActionChunkLearner:
    """Offline learner of chunks, which are sequences of T discrete actions that the policy predicts at once.

    The network decides the method. A network with a U-Net is a diffusion policy; one with logits is a clone, which
    classifies each action of the chunk (behaviour cloning).

    With a GRU (`config.gru`) the policy remembers the observations of an episode, and learns from sequences of steps.

    Shapes: R rows, T actions of a chunk, K discrete actions, A entries of the vector that represents an action. With a
    GRU of H units: L steps of S sequences, R = S * L.

    Attributes:
        policy: Trained network.
        acting: Copy of the trained network with averaged weights; `act` uses it.
        kind: Method, "diffusion" or "clone"; `update` returns the loss as ``losses/{kind}``.
    """

    def __init__(
        self,
        spec: EnvSpec,
        config: ChunkConfig,
        context: RankContext,
        action_codes: Tensor,
        build_policy: Callable[[], ChunkPolicy],
    ) -> None:
        """
        Args:
            spec: Observations and actions of the environments; its K actions are discrete.
            config: Hyper-parameters.
            context: Device, precision, random numbers and ranks (the processes of this training).
            action_codes: Vectors (K, A) float32 in -1..1 that represent the actions. A sampled vector is decoded as the
                action whose vector is nearest.
            build_policy: Builds the policy network, for chunks of `config.horizon` actions out of K. With a U-Net, this
                learner trains a diffusion policy; without one, a clone by cross-entropy.
        """
        assert spec.num_actions == len(action_codes), (spec.num_actions, len(action_codes))
        self.spec, self.config = spec, config
        self.precision, self.noise, self.ranks = context.precision, context.noise, context.ranks
        self.action_codes = action_codes.to(context.device)
        self.policy = build_policy().to(context.device)
        assert self.policy.shape == (config.horizon, spec.num_actions), self.policy.shape
        self.acting = ema_copy(self.policy)
        self._caches = feature_caches(self.acting)
        self.adam = AcceleratedAdam(
            self.policy,
            config.lr,
            ranks=context.ranks,
            precision=context.precision,
            weight_decay=config.weight_decay,
            max_grad_norm=config.max_grad_norm,
        )
        self.kind = "clone" if self.policy.unet is None else "diffusion"
        self.schedule = None if self.policy.unet is None else noise_schedule(config)
        self.updates = 0

    @property
    def encoder(self) -> nn.Module:
        """Observation encoder of `acting`, the network with averaged weights."""
        return self.acting.encoder

    def update(self, batch: dict[str, Tree]) -> dict[str, Tensor]:
        """Takes one optimiser step on demonstrated chunks.

        Args:
            batch: ``obs``, a tensor or nested dict of tensors (R, ...), and ``action`` (R, T) int64, the demonstrated
                chunks; R rows, T actions of a chunk. An optional ``valid`` (R, T) bool marks the actions in the loss,
                which is their mean over the batches of all ranks; without it, all actions count. With a GRU the rows
                have the axes (L, S), ``carry`` (S, H) is the state before the sequences, and ``starts`` (L, S) bool
                marks the first steps of episodes.

        Returns:
            Losses and statistics of the update by name, detached 0-d tensors.
        """
        action, valid = batch["action"], batch.get("valid")
        memory: tuple[Tensor | None, Tensor | None] = None, None
        labelled: Tensor | slice = ALL_ROWS
        if self.config.gru:
            memory = batch["carry"], batch["starts"]
            action, valid = by_sequence(action), None if valid is None else by_sequence(valid)
            if valid is not None and bool(valid.any()):  # the head skips steps that only fill the memory
                labelled = valid.any(1)
        if self.schedule is None:
            logits = self.adam.forward(batch["obs"], None, None, *memory, labelled)
            action = action[labelled]
            losses = F.cross_entropy(logits.flatten(0, 1), action.flatten(), reduction="none").view(action.shape)
            valid = None if valid is None else valid[labelled]
            figures = {"losses/agreement": self._mean((logits.argmax(-1) == action).float(), valid).detach()}
        else:
            chunk = self.action_codes[action]
            noise = self.noise("chunks/noise", len(action)).normal(*chunk.shape[1:])
            step = self.noise("chunks/step", len(action)).integers(self.config.noise_steps).view(-1)
            chunk, noise, step = chunk[labelled], noise[labelled], step[labelled]
            noisy = self.schedule.add_noise(chunk, noise, step)
            prediction = self.adam.forward(batch["obs"], noisy, step, *memory, labelled)
            target = noise if self.config.predict == "epsilon" else chunk
            losses = F.mse_loss(prediction, target, reduction="none").mean(-1)
            valid = None if valid is None else valid[labelled]
            figures = {}
        loss = self._mean(losses, valid)
        norm = self.adam.step(loss)
        self.updates += 1
        keep = min(self.config.ema, (1 + self.updates) / (10 + self.updates))
        update_ema(self.acting, self.policy, keep, self._caches)
        return {f"losses/{self.kind}": loss.detach(), "losses/grad_norm": norm, **figures}

    def _mean(self, values: Tensor, valid: Tensor | None) -> Tensor:
        """Returns the mean (0-d) of `values` (R, T) over the valid entries of all ranks, as their share of this rank.

        Ranks average their gradients, so each rank divides its sum by the mean of the ranks' counts.
        """
        if valid is None:
            return values.mean()
        count = self.ranks.average_(valid.sum().to(values.dtype)).clamp(min=1)
        return torch.where(valid, values, 0.0).sum() / count

    @torch.no_grad()
    def act(self, obs: Tree, carry: Tensor | None, explore: bool) -> tuple[Tensor, dict[str, Tensor], Tensor | None]:
        """Samples action chunks with a diffusion policy, or takes the likeliest actions of a clone.

        Args:
            obs: Tensor or nested dict of tensors (R, ...): observations of R environments.
            carry: State of the GRU (R, H); None without a GRU.
            explore: Not used; a diffusion policy always samples, and a clone never does.

        Returns:
            Chunks (R, T) int64 of T actions each; an empty dict; the next state (R, H), None without a GRU.
        """
        features, carry = self.encode(obs, carry)
        return self.choose(features), {}, carry

    @torch.no_grad()
    def encode(self, obs: Tree, carry: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """First half of `act`: returns the features (R, F) of the observations, and the next state of the GRU."""
        with self.precision.autocast():
            return self.acting.encode(obs, carry)

    @torch.no_grad()
    def choose(self, features: Tensor) -> Tensor:
        """Second half of `act`: returns chunks (R, T) int64 for features (R, F), which may be a part of the rows."""
        with self.precision.autocast():
            if self.schedule is None:
                return self.acting.classify(features).argmax(-1)
            noise = self.noise("chunks/sample", len(features))
            chunk = noise.normal(self.config.horizon, self.action_codes.shape[1])
            chunk = sample_chunks(self.config, chunk, lambda noisy, step: self.acting.denoise(noisy, step, features))
        return nearest(chunk, self.action_codes)

    def initial_carry(self, num_envs: int) -> Tensor | None:
        """Returns the state of the GRU at the start of an episode: zeros (num_envs, H); None without a GRU."""
        if not self.config.gru:
            return None
        return torch.zeros(num_envs, self.config.gru, device=self.action_codes.device)

    def policy_state(self) -> dict[str, Tensor]:
        """Returns the averaged weights, for the exported policy."""
        return self.acting.state_dict()

    def state_dict(self) -> dict:
        """Returns the complete training state for a checkpoint: the tensors themselves, not copies."""
        return {
            **{name: getattr(self, name).state_dict() for name in ("policy", "acting", "adam", "noise")},
            "updates": self.updates,
        }

    def load_state_dict(self, state: dict) -> None:
        """Restores a result of `state_dict` in place."""
        for name in ("policy", "acting", "adam", "noise"):
            getattr(self, name).load_state_dict(state[name])
        self.updates = int(state["updates"])
