"""StoredOpponent: team B plays with the policy of another run, which each checkpoint of this run contains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from powerband.core.config import from_json
from powerband.core.config.saved import to_json
from powerband.core.rank_context import RankContext
from powerband.core.run.checkpoints.manifest import CheckpointError
from powerband.recipes.snakes.config import OLD_NAMES, Config
from powerband.recipes.snakes.env.env import SnakesEnv, make_env_spec
from powerband.recipes.snakes.env.opponents import PolicyOpponent
from powerband.recipes.snakes.evaluation import as_player
from powerband.recipes.snakes.learners import checkpoint_and_config, load, make_learner, weights_of


class StoredOpponent:
    """Opponent with the trained policy of another run. It takes the likeliest actions and does not learn.

    Its weights and its configuration are a part of each checkpoint, so a resume does not need the other run. A resume
    with another value of the option ``opponent`` reads that one instead.

    Args:
        source: Run folder or checkpoint, the value of ``opponent``.
        context: Context of this rank. Rank 0 determines the checkpoint, because the other run may still be training.
    """

    def __init__(self, source: str, context: RankContext) -> None:
        self.source, self.context = source, context
        self._state: dict[str, Any] = {}
        self._player: PolicyOpponent | None = None

    def read(self) -> None:
        """Loads the policy from the run or checkpoint `source`.

        Raises:
            ConfigError: `source` is not a run of snakes, has no checkpoint, or its weights have other shapes than its
                configuration says.
        """
        with torch.random.fork_rng(devices=[]):  # the initial weights of the learner do not depend on the opponent
            checkpoint = self.context.ranks.gather(str(checkpoint_and_config(Path(self.source))[0]))[0]
            learner, _ = load(Path(checkpoint))
            _, config = checkpoint_and_config(Path(checkpoint))
        self._build(to_json(config), learner.policy_state())

    def act(self, env: SnakesEnv, boards: slice) -> Tensor:
        """Computes actions (n, 3) int64 of team B on the n `boards` of `env`: 0..3 = up, down, left, right."""
        assert self._player is not None
        return self._player.act(env, boards)

    def state_dict(self) -> dict[str, Any]:
        """Returns ``source``, ``config`` (JSON text) and ``weights`` of the policy."""
        return self._state

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        """Restores the policy of a result of `state_dict`.

        If that has another source, or is None because the run had another kind of opponent, `read` loads the policy.
        """
        if state is None or state["source"] != self.source:
            self.read()
        else:
            self._build(state["config"], state["weights"])

    def _build(self, text: str, weights: dict[str, Tensor]) -> None:
        config = from_json(Config, text, self.source, OLD_NAMES)
        device = self.context.device
        with torch.random.fork_rng(devices=[]):
            learner = make_learner(config, make_env_spec(config.observation), RankContext.single(device))
        try:
            weights_of(learner).load_state_dict(weights)
        except RuntimeError as error:
            raise CheckpointError(
                f"opponent={self.source}: the stored weights do not fit its configuration ({str(error)[:200]}). "
                f"Name another run or checkpoint."
            ) from error
        self._player = as_player(learner, config.observation)
        own = {name: tensor.detach() for name, tensor in learner.policy_state().items()}
        self._state = {"source": self.source, "config": text, "weights": own}
