"""Policies by name: a policy may be on another device than its environment."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from powerband.algos.chunks.action_chunks import ActionChunkLearner
from powerband.recipes.sketchnav import policies


class Placed:
    """Stands in for a tensor: has a device and moves to another one."""

    def __init__(self, device: str) -> None:
        self.device = device

    def to(self, device: str) -> Placed:
        return Placed(device)


@pytest.mark.parametrize("chunks", [False, True])
def test_observations_move_to_the_learner_and_actions_to_the_environment(
    monkeypatch: pytest.MonkeyPatch, chunks: bool
) -> None:
    observed, given = [], []

    def choose(obs: dict[str, Any]) -> Placed:
        observed.append(obs["gps"].device)
        return Placed("learner's")

    sketch = SimpleNamespace(sketches=Placed("learner's"), set_sketches=lambda pages: given.append(pages.device))
    monkeypatch.setattr(policies, "encoder_of", lambda learner: SimpleNamespace(sketch=sketch, image_keys=()))
    monkeypatch.setattr(policies, "NavigationChunkActor", lambda *_: lambda env, obs, carry: (choose(obs), carry))
    learner: Any = SimpleNamespace(act=lambda obs, carry, **options: (choose(obs), {}, carry))
    if chunks:
        learner = object.__new__(ActionChunkLearner)
    episodes: Any = SimpleNamespace(sketch=Placed("of the episodes"))
    env: Any = SimpleNamespace(device="environment's")
    action, _ = policies.as_policy(learner, episodes)(env, {"gps": Placed("environment's")}, None)
    assert given == observed == ["learner's"] and action.device == "environment's"
