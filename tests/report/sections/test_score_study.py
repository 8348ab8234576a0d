"""The page of a search for the time to a score: curves with their Pareto front, verification, importance, cost."""

from __future__ import annotations

import copy

from powerband.report.sections.score_study import is_study, pareto_front, sections

STUDY = {
    "score": "return",
    "target": 90.0,
    "chosen": {"ppo.lr": 0.001},
    "best_score": 95.0,
    "verification": {
        "budget_s": 40.0,
        "seeds": [1, 2, 3],
        "times": [5.0, 6.0, None],
        "present_times": [20.0, 21.0, 22.0],
        "ratio": {"value": 0.55, "low": 0.4, "high": 0.8},
        "saved_s": 12.0,
    },
    "importances": {"learning_rate": 0.7, "num_envs": 0.3},
    "seconds": 600.0,
    "pays_off_after": 50,
    "settings": [
        {"setting": {"ppo.lr": 0.001}, "seconds": 5.5, "times": [5.0, None], "best_score": 95.0, "steps_per_s": 1e4}
    ],
    "trials": [
        {"setting": {}, "present": True, "seed": 1, "outcome": "reached", "message": "", "curve": [[10, 4.0, 50.0]]},
        {
            "setting": {"ppo.lr": 0.001},
            "present": False,
            "seed": 1,
            "outcome": "reached",
            "message": "",
            "curve": [[10, 2.0, 40.0], [20, 5.0, 95.0], [30, 6.0, None]],
        },
        {"setting": {"num_envs": 9}, "present": False, "seed": 1, "outcome": "failed", "message": "<nan>", "curve": []},
    ],
}


def test_the_front_joins_points_that_no_other_beats() -> None:
    assert pareto_front([(3, 5), (1, 2), (2, 1), (3, 4), (4, 5), (5, 9)]) == [(1, 2), (3, 5), (5, 9)]
    assert pareto_front([]) == []


def test_every_section_has_its_figures() -> None:
    page = sections(STUDY)
    assert "Pareto front" in page["Score over time"] and "present settings, seed 1" in page["Score over time"]
    legend = page["Score over time"].partition("<div class=legend>")[2].partition("</div>")[0]
    assert legend.count("present settings") == 1 and "seed" not in legend  # one entry for all runs of a colour
    assert "&gt; 40" in page["Verification"] and "0.55 times" in page["Verification"]
    assert "1 of 2" in page["Settings"] and "70 %" in page["Importance"]
    assert "pays off after 50 runs" in page["Cost"] and "&lt;nan&gt;" in page["Cost"]


def test_settings_that_were_refused_before_the_last_verification_are_listed() -> None:
    ratio = {"value": 2.68, "low": 1.57, "high": 4.26}
    earlier = {"setting": {"ppo.lr": "<b>"}, "seeds": [4, 5, 6], "ratio": ratio}
    last = {"setting": {"num_envs": 7}, "seeds": STUDY["verification"]["seeds"], "ratio": ratio}
    page = sections(STUDY | {"refused": [earlier, last]})["Verification"]
    assert "2.68 [1.57, 4.26]" in page and "&lt;b&gt;" in page and "<b>" not in page
    assert "num_envs=7" not in page and "refused" not in sections(STUDY)["Verification"]
    file = STUDY | {"objective": "score"}
    assert is_study(file) and is_study(file | {"refused": [earlier]})
    assert not is_study(file | {"refused": [{**earlier, "ratio": None}]})


def test_a_best_score_that_is_a_text_is_escaped() -> None:
    study = copy.deepcopy(STUDY)
    study["settings"][0]["best_score"] = "<b>95</b>"
    assert "&lt;b&gt;95" in sections(study)["Settings"] and "<b>" not in sections(study)["Settings"]


def test_a_search_without_success_has_a_page() -> None:
    study = copy.deepcopy(STUDY) | {"chosen": None, "verification": None, "importances": {}, "pays_off_after": None}
    study["trials"] = study["trials"][2:]
    page = sections(study | {"settings": []})
    assert not any(page[name] for name in ("Score over time", "Verification", "Settings", "Importance"))
    assert "1 starts of trials" in page["Cost"]
