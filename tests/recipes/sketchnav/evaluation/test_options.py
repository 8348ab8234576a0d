"""Options of ``powerband eval`` for sketchnav: options without effect are refused."""

from __future__ import annotations

from typing import Any

import pytest

from powerband.core.errors import ConfigError
from powerband.recipes.sketchnav.evaluation.options import Evaluation


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"metres_per_pixel": 0.02}, "metres_per_pixel=0.02 is the scale .*Write plans_dir=FOLDER, too"),
        ({"plans_dir": "plans", "plans": 3}, "plans=3 has no effect with plans_dir=plans.*Leave plans out"),
        ({"drawings": "mine", "sketches": ("true",)}, "sketches has no effect with drawings=mine.*Leave sketches out"),
        ({"drawings": "mine", "episodes": 5}, "episodes=5 has no effect with drawings=mine.*Leave episodes out"),
        ({"drawings": "mine"}, "drawings of the episodes of one split, but splits names none. Write splits=val_unseen"),
        ({"drawings": "mine", "splits": ("train", "val_seen")}, "splits names 2. Write splits=val_unseen"),
    ],
)
def test_options_without_effect_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Evaluation(**options)


def test_options_with_an_effect_are_accepted() -> None:
    Evaluation(plans_dir="plans", metres_per_pixel=0.02, sketches=("true",), episodes=5)
    Evaluation(drawings="mine", splits=("val_unseen",), plans=3)
    Evaluation(draw=True, plans_dir="plans", metres_per_pixel=0.02, port=8000)
