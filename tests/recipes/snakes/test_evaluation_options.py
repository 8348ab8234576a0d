"""Options of ``powerband eval`` for snakes: options without effect are refused."""

from __future__ import annotations

from typing import Any

import pytest

from powerband.core.errors import ConfigError
from powerband.recipes.snakes.evaluation_options import Evaluation

EXPORT = {"export": "jidi:folder"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"port": 8000}, "port=8000 has no effect without play=browser. Leave port out"),
        ({"human": "team"}, "human=team has no effect without play=terminal or play=browser"),
        ({"moves_per_s": 0}, "moves_per_s=0 has no effect without play="),
        ({"play": "terminal", "port": 8000}, "port=8000 has no effect without play=browser"),
        ({"play": "terminal", "policies": ("random", "greedy")}, "policies=random,greedy has no effect with play=term"),
        ({"play": "browser", "gpus": "0"}, "gpus=0 has no effect with play=browser"),
        ({"play": "browser", "precision": "bf16"}, "precision=bf16 has no effect"),
        ({"play": "browser", "workers": 2}, "workers=2 has no effect"),
        ({**EXPORT, "episodes": 20}, "episodes=20 has no effect with export"),
        ({**EXPORT, "seed": 1}, "seed=1 has no effect with export"),
        ({**EXPORT, "human": "team"}, "human=team has no effect with export"),
    ],
)
def test_options_without_effect_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Evaluation(**options)


def test_options_with_an_effect_are_accepted() -> None:
    Evaluation(policies=("random",), episodes=20, gpus="0", workers=2, seed=1, video=False)
    Evaluation(play="browser", port=8000, human="team", moves_per_s=0, seed=1)
    Evaluation(play="terminal", human="team", video=False)
    Evaluation(export="jidi:folder")
