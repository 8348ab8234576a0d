"""ReplayLearner: features of observations and saved state of the learners that update on batches from a replay."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from powerband.core.noise import NoiseSource
from powerband.core.optim.precision import Precision
from powerband.core.schedule import UpdateCycle
from powerband.data.types import Tree
from powerband.nets.observations.encoders import ObsEncoder, encode
from powerband.nets.observations.features import features
from powerband.nets.observations.normalise import RunningNorm


class ReplayLearner:
    """Base class of SAC, TD3, FastTD3 and DQN. A subclass creates its parts and defines ``act``, ``update`` and losses.

    Shapes: N environments, B rows of a batch, F features of an observation.

    Attributes:
        PARTS: Names of the attributes that have a ``state_dict``, in the order of a checkpoint. None has no state.
        COUNTERS: Names of the tensors that a checkpoint contains as they are.
        POLICY: Name of the network that chooses the actions.
        BOUNDS: Names of the tensors that map the outputs of this network to the environment's units.
        precision: Precision of the networks.
        noise: Random streams of this rank.
        encoder: Encoder of observations with images or categories; None joins all entries.
        obs_norm: Running statistics that normalise the features, or None.
        updates: Number of updates, 0-d int64.
        cycle: Position in a repeating sequence of updates, such as critic, then critic and actor.
    """

    PARTS: ClassVar[tuple[str, ...]]
    COUNTERS: ClassVar[tuple[str, ...]] = ("updates",)
    POLICY: ClassVar[str] = "actor"
    BOUNDS: ClassVar[tuple[str, ...]] = ("centre", "scale")

    precision: Precision
    noise: NoiseSource
    encoder: ObsEncoder | None
    obs_norm: RunningNorm | None
    updates: Tensor
    cycle: UpdateCycle

    def _features(self, obs: Tree, encoder: ObsEncoder | None) -> Tensor:
        """Computes the inputs (B, F) of the networks; without `encoder` all entries of `obs` are joined."""
        rows = features(obs, 1) if encoder is None else encode(encoder, obs, self.precision)
        return rows if self.obs_norm is None else self.obs_norm(rows)

    def initial_carry(self, num_envs: int) -> None:
        """Returns None: the policy has no recurrent state."""

    def policy_state(self) -> dict[str, Tensor]:
        """Returns the tensors of the exported policy.

        They are the parameters of the network `POLICY`, those of the encoder and the statistics of the observations
        with the prefixes ``encoder.`` and ``obs_norm.``, and the tensors `BOUNDS`, which map actions from [-1, 1] to
        the environment's units.
        """
        encoder = {} if self.encoder is None else self.encoder.state_dict(prefix="encoder.")
        norm = {} if self.obs_norm is None else self.obs_norm.state_dict(prefix="obs_norm.")
        bounds = {name: getattr(self, name) for name in self.BOUNDS}
        return {**getattr(self, self.POLICY).state_dict(), **encoder, **norm, **bounds}

    def _parts(self) -> dict[str, Any]:
        """Returns the parts with state by name."""
        parts = {name: getattr(self, name) for name in self.PARTS}
        return {name: part for name, part in parts.items() if part is not None}

    def state_dict(self) -> dict:
        """Returns the complete training state for a checkpoint: the tensors themselves, not copies."""
        parts = {name: part.state_dict() for name, part in self._parts().items()}
        return {**parts, **{name: getattr(self, name) for name in self.COUNTERS}}

    def load_state_dict(self, state: dict) -> None:
        """Restores a result of `state_dict` in place."""
        for name, part in self._parts().items():
            part.load_state_dict(state[name])
        for name in self.COUNTERS:
            getattr(self, name).fill_(int(state[name]))
        self.cycle.restore(int(state["updates"]))
