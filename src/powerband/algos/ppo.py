"""PPO with clipping, for discrete (masked) and continuous actions, one agent or several, recurrent or not.

Source: Schulman et al. 2017, equation 7; Huang et al. 2022, "The 37 implementation details of PPO".
"""

from __future__ import annotations

import warnings
from typing import cast

import torch
from torch import Tensor, nn

from powerband.algos.actions import PolicyActions
from powerband.algos.settings import PPOConfig
from powerband.core.errors import ConfigError
from powerband.core.optim.compile import compile_if
from powerband.core.optim.flat_adam import FlatAdam
from powerband.core.optim.learning_rate import LearnerLr
from powerband.core.rank_context import RankContext
from powerband.core.schedule import UpdateCycle
from powerband.data.types import EnvSpec, Tree
from powerband.nets.actor_critic import ActorCritic
from powerband.nets.observations.auxiliary import AuxiliaryLosses
from powerband.nets.observations.features import action_mask, feature_leaves, features, num_features, state_width


class PPO:
    """On-policy learner with a clipped policy objective (PPO) for one agent or several.

    The agents share one network: an agent axis is folded into the batch, so that every agent is a row. Actions may be
    continuous, discrete, or of several discrete entries (MultiDiscrete), see `PolicyActions`.

    Shapes: N environments, A agents, K discrete actions, D entries of a continuous or MultiDiscrete action, H width of
    the GRU, T steps, n rows of a mini-batch (sequences with a GRU). An axis in brackets exists only if the environments
    have it.
    """

    lr = LearnerLr("adam")

    def __init__(self, spec: EnvSpec, config: PPOConfig, context: RankContext, encoder: nn.Module | None = None):
        """
        Args:
            spec: Spaces of the environments.
            config: Hyper-parameters.
            context: Device, precision, random numbers and gradient averaging of this rank.
            encoder: Module that is trained too and computes features (rows, encoder.width) from observations whose
                leading axes are folded into one. If it is an `AuxiliaryLosses`, its losses are added. None joins all
                observation tensors to one vector.

        Raises:
            ConfigError: `config.gru` is set without a shared trunk, `config.expert_coef` is set but the observations
                contain no expert actions, `config.action_noise` is "pink" for discrete actions, continuous actions
                are not one vector per environment or agent, or the state for a central critic is not a vector.
        """
        if config.expert_coef and (encoder is None or not isinstance(spec.obs, dict) or "expert" not in spec.obs):
            raise ConfigError(
                f"ppo.expert_coef={config.expert_coef:g}: this environment provides no expert actions. "
                "Write ppo.expert_coef=0."
            )
        if config.gru and not config.shared_trunk:
            raise ConfigError(f"ppo.gru={config.gru} needs a shared trunk. Write ppo.shared_trunk=true, or ppo.gru=0.")
        if config.action_noise == "pink" and spec.num_actions is not None:
            raise ConfigError(
                "ppo.action_noise=pink needs continuous actions, but these are discrete. Write ppo.action_noise=white."
            )
        self.spec, self.config, self.precision, self.noise = spec, config, context.precision, context.noise
        self.average, self.world_size = context.average, context.world_size
        self.leading = 1 if spec.num_agents is None else 2
        self.actions = PolicyActions("ppo", spec, context.device)
        state_inputs = 0 if config.shared_trunk else state_width(spec.obs, spec.num_agents)
        self.has_state = has_state = state_inputs > 0
        self.net = ActorCritic(
            num_features(spec.obs, spec.num_agents) if encoder is None else cast(int, encoder.width),
            config.hidden,
            self.actions.outputs,
            config.activation,
            config.shared_trunk,
            state_inputs,
            config.gru,
            config.normalize_obs,
            None if self.actions.discrete else config.log_std,
        ).to(context.device)
        self.encoder = None if encoder is None else encoder.to(context.device)
        self.modules = nn.ModuleDict({"net": self.net} if encoder is None else {"net": self.net, "encoder": encoder})
        self.cycle = UpdateCycle(1)
        self.adam = FlatAdam(
            [self.modules],
            config.lr,
            precision=context.precision,
            eps=1e-5,
            max_grad_norm=config.max_grad_norm,
            average=context.average,
        )
        self.auxiliary = encoder if isinstance(encoder, AuxiliaryLosses) else None
        self.entropy_coef = torch.tensor(config.entropy_coef, device=context.device)
        self.expert_coef = torch.tensor(config.expert_coef, device=context.device)
        # The ranks then average the KL divergence within the loss, which no compiled function can do.
        self._averages_kl = config.target_kl is not None and context.world_size > 1
        if self._averages_kl and config.compile:
            warnings.warn(
                f"ppo.compile=true has no effect on {context.world_size} ranks with ppo.target_kl, because the ranks "
                f"average the KL divergence within the loss. Leave one of the two out.",
                stacklevel=2,
            )
        self._loss_fn = compile_if(self._loss, config.compile and not self._averages_kl)
        self.fused = None
        plain = context.device.type == "cpu" and context.precision.name == "fp32" and encoder is None and not has_state
        if config.can_be_fused and plain and not (self.actions.heads or self._averages_kl):
            from powerband.algos.fused.ppo import FusedPPO  # imports numba, which takes half a second

            self.fused = FusedPPO(self.net, self.adam, config)

    def set_progress(self, progress: float) -> None:
        """Sets the changing weights of the loss; `progress` is the spent share of the budget, 0..1."""
        config = self.config
        if config.entropy_end is not None:
            coef = config.entropy_coef + progress * (config.entropy_end - config.entropy_coef)
            self.entropy_coef.fill_(coef)
            if self.fused is not None:
                self.fused.set_entropy_coef(coef)
        if config.expert_until is not None:
            self.expert_coef.fill_(config.expert_coef * max(0.0, 1.0 - progress / config.expert_until))

    @torch.no_grad()
    def act(
        self, obs: Tree, carry: Tensor | None, explore: bool, temperature: float = 1.0
    ) -> tuple[Tensor, dict[str, Tensor], Tensor | None]:
        """Samples actions; explore=False takes the likeliest.

        Args:
            obs: Tensor or nested dict of tensors (N, [A,] ...); N environments, A agents if there are several. An entry
                ``action_mask`` (N, [A,] K) bool is True for allowed actions out of K.
            carry: Recurrent state (N, [A,] H) of H numbers; None without a GRU.
            explore: Samples if true.
            temperature: Raises the probabilities to the power of 1 / temperature and normalises them; a value below 1
                makes the policy more deterministic.

        Returns:
            Actions (N, [A]) int64 if discrete, (N, D) int64 if MultiDiscrete, else (N, [A,] D) float32; a dict with
            ``log_prob`` and ``value`` (N, [A]) and, for continuous actions, the unclipped ``raw_action`` (N, [A,] D);
            the next carry (N, [A,] H), None without a GRU.
        """
        lead = self._lead(obs)
        sampled, log_prob, value, carry = self._choose(obs, lead, carry, explore, temperature)
        action, stored = self.actions.for_env(sampled, lead)
        return action, {"log_prob": log_prob.view(lead), "value": value.view(lead), **stored}, carry

    def _choose(
        self, obs: Tree, lead: torch.Size, carry: Tensor | None, explore: bool, temperature: float
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Returns actions (rows,) or (rows, D), their log-probabilities (rows,), values (rows,) and the next carry.

        `lead` is the shape (N, [A]) of the leading axes of `obs`.
        """
        noise = self.noise("ppo/act", lead[0]) if explore else None
        pink = noise is not None and not self.actions.discrete and self.config.action_noise == "pink"
        if self.fused is not None and not pink and temperature == 1 and lead.numel() <= self.fused.max_rows:
            x = self._features(obs, self.leading).flatten(0, -2)
            return *self.fused.act(x, self._mask(obs), noise), None
        outputs, value, carry = self._forward(obs, lead, carry, None)
        policy = self.actions.distribution(outputs, self.net.log_std, self._mask(obs), temperature)
        agents = lead.numel() // lead[0]
        sampled = policy.mode() if noise is None else self.actions.sample(policy, noise, agents, pink)
        return sampled, policy.log_prob(sampled), value, carry

    @torch.no_grad()
    def value(self, obs: Tree, carry: Tensor | None = None) -> Tensor:
        """Computes the state values of observations.

        Args:
            obs: Tensor or nested dict of tensors (N, [A,] ...); N environments, A agents if there are several.
            carry: Recurrent state (N, [A,] H) of H numbers; None without a GRU.

        Returns:
            Values (N, [A]) float32.
        """
        lead = self._lead(obs)
        return self._forward(obs, lead, carry, None)[1].view(lead)

    def after_rollout(self, obs: Tree) -> None:
        """Updates the running mean and variance that normalise features; does nothing without `normalize_obs`.

        The loop calls this method after the updates of a rollout. The statistics are constant during these updates, so
        that the probability ratios start at 1.

        Args:
            obs: Observations (T, N, [A,] ...) of the rollout: T steps, N environments, A agents if there are several.
        """
        if self.net.norm is not None:
            with torch.no_grad(), self.precision.autocast():
                rows = self._features(obs, self.leading + 1)
            self.net.norm.update_statistics(rows, self.average, self.world_size)

    def update(self, batch: dict[str, Tree]) -> dict[str, Tensor]:
        """Takes one optimiser step on a mini-batch.

        Args:
            batch: ``obs``, ``action`` (``raw_action`` if continuous), ``log_prob``, ``value``, ``advantages`` and
                ``returns``, with the shapes (n, [A,] ...) for n rows and A agents. With a GRU, the rows are n sequences
                of T steps (T, n, [A,] ...), and the batch also contains their initial ``carry`` (n, [A,] H) and
                ``starts`` (T, n) bool, True at first steps of episodes.

        Returns:
            Losses and statistics of the update by name, detached 0-d tensors.
        """
        if self.fused is not None and batch["log_prob"].numel() <= self.fused.max_rows:
            figures = self.fused.gradient(*self._fused_inputs(batch, self.leading))
            figures["losses/grad_norm"] = self.adam.apply()
            return figures
        with self.precision.autocast():
            loss, figures = self._loss_fn(batch)
        figures["losses/grad_norm"] = self.adam.step(loss)
        return figures

    def updates_epochs(self, rows: int) -> bool:
        """Returns whether the loop may call `update_epoch` with mini-batches of `rows` rows, in place of `update`."""
        alone = self.world_size == 1 and self.leading == 1
        return alone and self.fused is not None and rows <= self.fused.max_rows

    def update_epoch(self, data: dict[str, Tree], order: Tensor, size: int) -> dict[str, Tensor]:
        """Takes one optimiser step on each mini-batch of a rollout of T steps and N environments.

        Args:
            data: Tensors of the rollout (T, N, ...), with the names of the batch of `update`.
            order: Order of the T * N rows, a permutation (T * N,) int64.
            size: Rows of a mini-batch.

        Returns:
            Means over the mini-batches of the losses and statistics by name, 0-d tensors.
        """
        assert self.fused is not None
        figures = self.fused.epoch(*self._fused_inputs(data, 2), order, size)
        for _ in range(-(-len(order) // size)):
            self.average(self.adam.grad)  # one rank has nothing to average, but a measurement counts the calls
        return figures

    def _fused_inputs(self, batch: dict[str, Tree], leading: int) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
        """Returns features (rows, F), mask (rows, K), actions, and old values (rows, 4) for `FusedPPO`."""
        x = self._features(batch["obs"], leading).flatten(0, -2)
        old = [batch[name].reshape(-1) for name in ("log_prob", "value", "advantages", "returns")]
        return x, self._mask(batch["obs"]), batch[self.actions.field], torch.stack(old, 1)

    def _loss(self, batch: dict[str, Tree]) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns the loss, and its terms and statistics by name.

        The loss is the mean over all rows of -min(r A, clip(r) A) + value_coef (V - returns)^2 / 2 - entropy_coef H -
        expert_coef log pi(expert), plus the losses of the encoder. r is the probability ratio, A the advantage, V the
        value and H the entropy.
        """
        config, obs = self.config, batch["obs"]
        outputs, value, _ = self._forward(obs, batch["log_prob"].shape, batch.get("carry"), batch.get("starts"))
        policy = self.actions.distribution(outputs, self.net.log_std, self._mask(obs))
        log_prob = policy.log_prob(self.actions.rows(batch[self.actions.field]))
        advantages, returns = batch["advantages"].reshape(-1), batch["returns"].reshape(-1)
        old_log_prob = batch["log_prob"].reshape(-1)
        policy_loss, statistics = clipped_policy_loss(log_prob, old_log_prob, advantages, config.clip)
        entropy = policy.entropy().mean()
        error = (value - returns).square()
        if config.value_clip is not None:
            old = batch["value"].reshape(-1)
            clipped_value = old + (value - old).clamp(-config.value_clip, config.value_clip)
            error = torch.maximum(error, (clipped_value - returns).square())
        value_loss = 0.5 * error.mean()
        policy_terms = policy_loss - self.entropy_coef * entropy
        if config.target_kl is not None:
            kl = statistics["losses/kl"].clone()
            if self._averages_kl:  # the parts of a mini-batch on all ranks train the same networks
                self.average(kl)
            policy_terms = policy_terms * (kl <= 1.5 * config.target_kl)
        figures = {
            "losses/policy": policy_loss.detach(),
            "losses/value": value_loss.detach(),
            "losses/entropy": entropy.detach(),
            **statistics,
        }
        loss = policy_terms + config.value_coef * value_loss
        if config.expert_coef:
            expert_loss = -policy.log_prob(self.actions.rows(obs["expert"])).mean()
            loss, figures["losses/expert"] = loss + self.expert_coef * expert_loss, expert_loss.detach()
        if self.auxiliary is not None:
            for name, term in self.auxiliary.auxiliary(obs).items():
                loss, figures[f"losses/{name}"] = loss + term, term.detach()
        return loss, figures

    def _forward(
        self, obs: Tree, lead: torch.Size, carry: Tensor | None, starts: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Computes policy outputs (rows, ...), values (rows,) and the next carry, which is None without a GRU.

        Rows are all steps, environments and agents. `lead` is the shape of these leading axes of `obs`: (N, [A]), or
        (T, N, [A]) for sequences. `starts` (T, N) is True at first steps of episodes.
        """
        with self.precision.autocast():
            x = self._features(obs, len(lead)).flatten(0, -2)
            if self.net.gru is None:
                state = self._state(obs, lead) if self.has_state else None
                return self.net(x, state=state)
            assert carry is not None
            sequence = len(lead) > self.leading
            steps = lead[0] if sequence else 1
            folded = carry.reshape(-1, carry.shape[-1])
            if starts is not None and self.leading == 2:
                starts = starts.repeat_interleave(lead[-1], 1)
            outputs, value, last = self.net(x.view(steps, -1, x.shape[-1]), folded, starts)
            return outputs, value, last.view(carry.shape)

    def _features(self, obs: Tree, leading: int) -> Tensor:
        """Computes features (..., F numbers) of observations, whose first `leading` axes stay before the last one."""
        if self.encoder is None:
            return features(obs, leading)
        lead = self._lead(obs, leading)
        folded = _fold(obs, leading)
        return self.encoder(folded).view(*lead, -1)

    def _lead(self, obs: Tree, leading: int | None = None) -> torch.Size:
        return feature_leaves(obs)[0].shape[: self.leading if leading is None else leading]

    def _state(self, obs: dict[str, Tree], lead: torch.Size) -> Tensor:
        """Folds ``obs["state"]``, the input of the central critic, to (rows, width).

        A state without an agent axis is repeated for each agent. `lead` is the shape of the leading axes.
        """
        state = obs["state"]
        if state.dim() == len(lead):
            state = state.unsqueeze(-2).expand(*lead, -1)
        return state.reshape(-1, state.shape[-1])

    def _mask(self, obs: Tree) -> Tensor | None:
        mask = action_mask(obs)
        return None if mask is None else mask.flatten(0, -2)

    def initial_carry(self, num_envs: int) -> Tensor | None:
        """Creates the recurrent state of new episodes: zeros (num_envs, [A agents,] GRU width); None without a GRU."""
        if not self.config.gru:
            return None
        agents = () if self.spec.num_agents is None else (self.spec.num_agents,)
        return torch.zeros(num_envs, *agents, self.config.gru, device=self.adam.flat.device)

    def policy_state(self) -> dict[str, Tensor]:
        """Returns the parameters and the normalisation statistics of the networks, for the exported policy."""
        return self.modules.state_dict()

    def state_dict(self) -> dict:
        """Returns the complete training state for a checkpoint: the tensors themselves, not copies."""
        return {name: getattr(self, name).state_dict() for name in ("modules", "adam", "noise")}

    def load_state_dict(self, state: dict) -> None:
        """Restores a result of `state_dict` in place."""
        for name in ("modules", "adam", "noise"):
            getattr(self, name).load_state_dict(state[name])


def clipped_policy_loss(
    log_prob: Tensor, old_log_prob: Tensor, advantages: Tensor, clip: float
) -> tuple[Tensor, dict[str, Tensor]]:
    """Computes the clipped objective of the policy, -mean(min(r A, clip(r) A)), with r = exp(log_prob - old_log_prob).

    Args:
        log_prob: Log-probabilities (R,) of the stored actions under the present policy.
        old_log_prob: Log-probabilities (R,) under the policy that collected the rollout.
        advantages: Advantages A (R,).
        clip: Range of the probability ratio r, 1 - clip to 1 + clip.

    Returns:
        The loss, and detached statistics by name: an estimate of the KL divergence from the old policy, and the share
        of clipped ratios.
    """
    log_ratio = log_prob - old_log_prob
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1 - clip, 1 + clip)
    loss = -torch.minimum(ratio * advantages, clipped * advantages).mean()
    kl = (ratio.detach() - 1 - log_ratio.detach()).mean()
    return loss, {"losses/kl": kl, "losses/clipped": (clipped != ratio).float().mean().detach()}


def _fold(obs: Tree, leading: int) -> Tree:
    """Folds the first `leading` axes of each leaf of `obs` into one."""
    if isinstance(obs, dict):
        return {key: _fold(leaf, leading) for key, leaf in obs.items()}
    return obs.flatten(0, leading - 1)
