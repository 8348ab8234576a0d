"""DQN: Q-learning with a replay and a target network, for discrete actions.

Options add the usual extensions: double Q-learning, a dueling network, and quantiles of the return instead of its mean.
n-step returns are an option of the replay (``off_policy.n_step``).

Sources: Mnih et al. 2015, "Human-level control through deep reinforcement learning", algorithm 1; van Hasselt, Guez and
Silver 2016 (``double``); Wang et al. 2016 (``dueling``); Dabney et al. 2018, "Distributional Reinforcement Learning
with Quantile Regression", algorithm 1 (``quantiles``).
Suffixes: B rows, K actions, Q quantiles; Q is 1 if only the mean is learned.
"""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor

from powerband.algos.fused.choice import is_fusible
from powerband.algos.replay_learner import ReplayLearner
from powerband.algos.settings import DQNConfig
from powerband.core.errors import ConfigError
from powerband.core.optim.compile import compile_if
from powerband.core.optim.flat_adam import FlatAdam, FlatTarget
from powerband.core.optim.learning_rate import LearnerLr
from powerband.core.rank_context import RankContext
from powerband.core.schedule import UpdateCycle
from powerband.data.n_step import bootstrap_discount
from powerband.data.types import EnvSpec, Tree
from powerband.nets.distributions import MASKED, uniform_actions
from powerband.nets.mlp import MLP
from powerband.nets.observations.encoders import ObsEncoder
from powerband.nets.observations.features import action_mask, features, num_features
from powerband.nets.observations.normalise import vector_norm
from powerband.nets.q_network import QNetwork


class DQN(ReplayLearner):
    """Learner for one discrete action per environment. An ``action_mask`` in the observation restricts the actions.

    Shapes: N environments, B rows of a batch, F features of an observation, K actions.

    Attributes:
        env_steps: Steps of all environments on all ranks in which the learner explored, 0-d int64.
        epsilon: Probability of a random action, 0-d float32; it falls linearly in `env_steps`.
    """

    PARTS = ("net", "target_net", "adam", "noise", "encoder", "target_encoder", "obs_norm")
    COUNTERS = ("updates", "env_steps")
    POLICY, BOUNDS = "net", ()
    lr = LearnerLr("adam")

    def __init__(
        self, spec: EnvSpec, config: DQNConfig, context: RankContext, encoder: ObsEncoder | None = None
    ) -> None:
        """
        Args:
            spec: Spaces of the environments.
            config: Hyper-parameters.
            context: Device, precision, random numbers and gradient averaging of this rank.
            encoder: Encoder of observations with images or categories; None joins all entries.

        Raises:
            ConfigError: The actions are continuous, there are several per environment, or an agent axis exists.
        """
        if spec.num_actions is None:
            raise ConfigError("algo=dqn needs discrete actions, but these are continuous. Write algo=sac.")
        if spec.action_heads:
            raise ConfigError(
                f"algo=dqn needs one discrete action, but these are MultiDiscrete with {spec.action_heads} choices. "
                f"Write algo=ppo."
            )
        if spec.num_agents is not None or spec.action.shape:
            raise ConfigError(
                f"algo=dqn needs one action per environment, not an array of shape {spec.action.shape}. Write algo=ppo."
            )
        self.config, self.precision, self.noise = config, context.precision, context.noise
        self.average = context.average
        self.num_actions, self.world_size = spec.num_actions, context.world_size
        self.encoder = None if encoder is None else encoder.to(context.device)
        inputs = num_features(spec.obs, None) if encoder is None else encoder.width
        self.obs_norm = vector_norm("dqn", inputs, encoder).to(context.device) if config.normalize_obs else None
        quantiles = max(1, config.quantiles)
        self.net = QNetwork(inputs, config.hidden, self.num_actions, quantiles, config.dueling).to(context.device)
        self.target_net, self.target_encoder = copy.deepcopy(self.net), copy.deepcopy(self.encoder)
        self.adam = FlatAdam(
            [net for net in (self.net, self.encoder) if net is not None],
            config.lr,
            precision=context.precision,
            max_grad_norm=config.max_grad_norm,
            average=context.average,
        )
        targets = [net for net in (self.target_net, self.target_encoder) if net is not None]
        self.target = FlatTarget(self.adam, targets, config.tau)
        self.updates = torch.zeros((), dtype=torch.int64, device=context.device)
        self.env_steps = torch.zeros((), dtype=torch.int64, device=context.device)
        self.epsilon = torch.full((), config.epsilon_start, device=context.device)
        self._error_BQ = torch.zeros(0, 1, device=context.device)
        self.levels_Q = (torch.arange(quantiles, device=context.device) + 0.5) / quantiles
        self.cycle = UpdateCycle(config.target_interval)
        self._loss_fn = compile_if(self._loss, config.compile)
        self.fused = None
        if config.can_be_fused and is_fusible(context, config.hidden, encoder):
            from powerband.algos.fused.dqn import FusedDQN  # imports numba, which takes half a second

            assert isinstance(self.net.net, MLP)
            self.fused = FusedDQN(self.net.net, self.adam, self.target, config.double, config.huber_delta)
            context.noise.compile()

    @torch.no_grad()
    def act(self, obs: Tree, carry: Tensor | None, explore: bool) -> tuple[Tensor, dict[str, Tensor], None]:
        """Chooses the best allowed actions; if `explore`, with probability epsilon uniformly random allowed ones.

        Args:
            obs: Tensor or nested dict of tensors (N, ...): observations of N environments.
            carry: Not used; the policy has no recurrent state.
            explore: Explores if true, and counts the steps, by which epsilon falls.

        Returns:
            Actions (N,) int64; an empty dict; None, because the policy has no recurrent state.
        """
        rows, mask = self._features(obs, self.encoder), action_mask(obs)
        if self.fused is not None:
            values = self.fused.values(rows).unsqueeze(2)
        else:
            with self.precision.autocast(rows.shape[0]):
                values = self.net(rows)
        action = best_action(values, mask)
        if explore:
            coin, point = self.noise("dqn/act", rows.shape[0]).uniform(2).unbind(1)
            action = torch.where(coin < self.epsilon, uniform_actions(point, self.num_actions, mask), action)
            self.env_steps += rows.shape[0] * self.world_size
            self._set_epsilon()
        return action, {}, None

    def update(self, batch: dict[str, Tree]) -> dict[str, Tensor]:
        """Takes one step of the network and, at every `target_interval`-th update, of the target network.

        Args:
            batch: B transitions: ``obs`` and ``next_obs`` (B, ...), ``action`` (B,) int64, ``reward`` (B,),
                ``terminated`` (B,) bool and, with prioritised replay, ``weight`` (B,).

        Returns:
            Losses and statistics of the update by name, detached 0-d tensors.
        """
        obs = self._features(batch["obs"], self.encoder)
        with torch.no_grad():
            next_obs = target_next_obs = self._features(batch["next_obs"], self.target_encoder)
            if self.config.double and self.encoder is not None:
                next_obs = self._features(batch["next_obs"], self.encoder)
        discount, mask = bootstrap_discount(batch, self.config.gamma), action_mask(batch["next_obs"])
        weight = batch.get("weight")
        if self.fused is not None:
            rows = obs, batch["action"], batch["reward"], next_obs, discount
            loss, q_mean, error_B = self.fused.gradient(rows, mask, weight)
            self._error_BQ = error_B.unsqueeze(1)
            grad_norm = self.adam.apply()
        else:
            with self.precision.autocast():
                loss, q_mean, self._error_BQ = self._loss_fn(
                    obs, batch["action"], batch["reward"], next_obs, target_next_obs, discount, mask, weight
                )
            grad_norm = self.adam.step(loss)
        figures = {"losses/critic": loss.detach(), "losses/q": q_mean, "losses/grad_norm": grad_norm}
        self.updates += 1
        if self.cycle.advance() == self.cycle.period:
            self.target.update()
        return {**figures, "charts/epsilon": self.epsilon.clone()}

    @property
    def errors(self) -> Tensor:
        """Absolute errors (B,) of the newest update, of the means over the quantiles."""
        return self._error_BQ.mean(1).abs()

    def update_statistics(self, obs: Tree) -> None:
        """Adds collected observations (N, ...) to the statistics over all ranks, if observations are normalised."""
        if self.obs_norm is not None:
            self.obs_norm.update_statistics(features(obs, 1), self.average, self.world_size)

    def _loss(
        self,
        obs: Tensor,
        action: Tensor,
        reward: Tensor,
        next_obs: Tensor,
        target_next_obs: Tensor,
        discount: Tensor,
        mask: Tensor | None,
        row_weight: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Returns (loss, mean Q, errors Q(s, a) - y (B, Q), quantile by quantile).

        The loss is the mean Huber loss of Q(s, a) - y with y = r + discount Q'(s', a'), where `discount` is
        gamma (1 - terminated), see `bootstrap_discount`. The action a' is the best one that `mask` allows: of Q' or,
        with ``double``, of Q. `next_obs` and `target_next_obs` are the features of s' for Q and for Q'.

        Quantile i is trained on each quantile of y by the Huber loss times |level_i - 1(quantile i > y)|. The loss of a
        row is multiplied by `row_weight` (B,), if given.
        """
        with torch.no_grad():
            next_BKQ = self.target_net(target_next_obs)
            best = best_action(self.net(next_obs) if self.config.double else next_BKQ, mask)
            target_BQ = reward.unsqueeze(1) + discount.unsqueeze(1) * of_action(next_BKQ, best)
        q_BQ = of_action(self.net(obs), action)
        delta = self.config.huber_delta
        error_BQ = q_BQ.detach().float() - target_BQ
        if not self.config.quantiles:
            if row_weight is None:
                return F.huber_loss(q_BQ, target_BQ, delta=delta), q_BQ.detach().mean(), error_BQ
            rows = F.huber_loss(q_BQ, target_BQ, reduction="none", delta=delta).squeeze(1)
            return (row_weight * rows).mean(), q_BQ.detach().mean(), error_BQ
        q_BQ1, target_B1Q = torch.broadcast_tensors(q_BQ.unsqueeze(2), target_BQ.unsqueeze(1))
        level_Q1 = self.levels_Q.unsqueeze(1)
        weight = torch.where(q_BQ1 > target_B1Q, 1 - level_Q1, level_Q1)
        huber = F.huber_loss(q_BQ1, target_B1Q, reduction="none", delta=delta) / delta
        rows = (weight * huber).mean(2).sum(1)
        rows = rows if row_weight is None else row_weight * rows
        return rows.mean(), q_BQ.detach().mean(), error_BQ

    def _set_epsilon(self) -> None:
        """Computes epsilon from `env_steps`, in place, because captured graphs read it."""
        start, end = self.config.epsilon_start, self.config.epsilon_end
        slope = (start - end) / self.config.epsilon_steps
        torch.clamp(start - slope * self.env_steps, min=end, out=self.epsilon)

    def load_state_dict(self, state: dict) -> None:
        """Restores a result of `state_dict` in place."""
        super().load_state_dict(state)
        self._set_epsilon()


def best_action(values_BKQ: Tensor, mask: Tensor | None) -> Tensor:
    """Returns the allowed actions (B,) int64 with the largest mean value over Q quantiles.

    Args:
        values_BKQ: Values (B, K, Q) of B rows, K actions and Q quantiles.
        mask: Bools (B, K), True for allowed actions; None allows all. A row without allowed actions, such as after a
            terminal state, gets action 0.
    """
    q_BK = values_BKQ.mean(2)
    return (q_BK if mask is None else q_BK.masked_fill(~mask, MASKED)).argmax(1)


def of_action(values_BKQ: Tensor, action: Tensor) -> Tensor:
    """Selects the values (B, Q) of the action (B,) of each row from values (B, K, Q) of K actions and Q quantiles."""
    index = action.view(-1, 1, 1).expand(-1, 1, values_BKQ.shape[2])
    return values_BKQ.gather(1, index).squeeze(1)
