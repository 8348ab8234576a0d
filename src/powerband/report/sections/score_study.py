"""Score study: draws a search for the time to a score, with its Pareto front, importances and verification.

The data come from the ``.tuning.json`` next to a preset of ``powerband tune objective=score``.
"""

from __future__ import annotations

import html
from typing import Any

from powerband.core.config.schema import value_text
from powerband.core.json_shape import fits
from powerband.report.chart import Line, line_chart, number
from powerband.report.sections.tables import rows_table, text

FRONT, PRESENT, CHOSEN, OTHERS = 0, 1, 2, 9
"""Colours of the lines, indices into the page's palette."""
SHOWN_SETTINGS = 12
CHECK = {"seeds": [int], "times": [(float, None)], "present_times": [(float, None)], "budget_s": float}
RATIO = {"value": float, "low": float, "high": float}
REFUSED = {"setting": dict, "seeds": [int], "ratio": RATIO}
TRIAL = {"setting": dict, "seed": int, "present": bool, "curve": [list], "outcome": str, "message": str}
SETTING = {"setting": dict, "seconds": float, "times": [(float, None)], "steps_per_s": float}
STUDY = {
    "objective": str,
    "score": str,
    "target": float,
    "seconds": float,
    "chosen": (dict, None),
    "verification": ({**CHECK, "ratio": (RATIO, None), "saved_s": (float, None)}, None),
    "importances": dict,
    "trials": [TRIAL],
    "settings": [SETTING],
}
"""Types of the entries of a tuning file that the page uses."""


def is_study(value: dict[str, Any]) -> bool:
    """True if `value` is an undamaged study of a score, not a search for throughput."""
    if not fits(value, STUDY) or value["objective"] != "score":
        return False
    check = value["verification"] or {"seeds": [], "times": [], "present_times": []}
    equal = len(check["seeds"]) == len(check["times"]) == len(check["present_times"])
    refused = value.get("refused", [])  # files of earlier versions do not have it
    return equal and fits(refused, [REFUSED]) and fits(list(value["importances"].values()), [float])


def sections(study: dict[str, Any]) -> dict[str, str]:
    """Returns heading -> HTML of each section of the page about a search; a section without data is empty.

    Args:
        study: Contents of the file ``.tuning.json``, the results of ``powerband tune objective=score``.
    """
    return {
        "Score over time": curves(study),
        "Verification": verification(study) + refused_settings(study),
        "Settings": settings_table(study),
        "Importance": importances(study),
        "Cost": cost(study),
    }


def curves(study: dict[str, Any]) -> str:
    """Draws the score of every trial over its seconds of training, and the Pareto front over all trials, as HTML.

    `study` has the contents of the file ``.tuning.json``.
    """
    newest = {(setting_text(trial["setting"]), trial["seed"]): trial for trial in study["trials"] if trial["curve"]}
    lines, points = [], []
    for (setting, seed), trial in newest.items():
        curve = [(point[1], point[2]) for point in trial["curve"] if len(point) == 3 and fits(point, [float])]
        points += curve
        colour, group = OTHERS, "other settings"
        if trial["present"]:
            colour, group = PRESENT, "present settings"
        elif study["chosen"] is not None and trial["setting"] == study["chosen"]:
            colour, group = CHOSEN, "chosen settings"
        name = f"{setting if colour == OTHERS else group}, seed {seed}"
        lines.append(Line(name, [x for x, _ in curve], [y for _, y in curve], colour=colour, group=group))
    if not points:
        return ""
    front = pareto_front(points)
    lines.append(Line("Pareto front", [x for x, _ in front], [y for _, y in front], colour=FRONT))
    drawn = line_chart(study["score"], sorted(lines, key=lambda line: -line.colour), unit="s")
    note = (
        f"Seconds are seconds of training, without evaluations. The Pareto front joins the evaluations that no other "
        f"one beats in both time and score. The target is {study['target']:g}."
    )
    return f"<p class=note>{note}</p>{drawn}"


def pareto_front(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Returns the points (seconds, score) that no other point beats in both, in the order of their seconds."""
    front: list[tuple[float, float]] = []
    for seconds, score in sorted(points, key=lambda point: (point[0], -point[1])):
        if not front or score > front[-1][1]:
            front.append((seconds, score))
    return front


def verification(study: dict[str, Any]) -> str:
    """Returns a table of the times to the target score with the best and with the user's present settings, as HTML.

    The times are from runs with new seeds. A sentence states the ratio of the times and its confidence interval.
    `study` has the contents of the file ``.tuning.json``.
    """
    check = study["verification"]
    if check is None or not check["seeds"]:
        return ""

    def cell(time_s: float | None) -> str:
        return number(time_s) if time_s is not None else f"&gt; {number(check['budget_s'])}"

    rows = [
        [str(seed), cell(present), cell(best)]
        for seed, present, best in zip(check["seeds"], check["present_times"], check["times"], strict=True)
    ]
    ratio = check["ratio"]
    sentence = "Fewer than three seeds fitted into the budget."
    if ratio is not None:
        sentence = (
            f"The best setting needs {ratio['value']:.2f} times the time of the present ones "
            f"[{ratio['low']:.2f}, {ratio['high']:.2f}], a bootstrap interval over seeds."
        )
    return f"<p class=note>{sentence}</p>{rows_table(['seed', 'present settings, s', 'best setting, s'], rows)}"


def refused_settings(study: dict[str, Any]) -> str:
    """Returns a table of the settings that an earlier verification found slower than the present ones, as HTML.

    `study` has the contents of the file ``.tuning.json``. The setting of the table of `verification` is left out.
    """
    shown = (study["verification"] or {}).get("seeds")
    rows = []
    for each in study.get("refused", []):
        if each["seeds"] != shown:
            ratio, setting = each["ratio"], html.escape(setting_text(each["setting"]))
            interval = f"{ratio['value']:.2f} [{ratio['low']:.2f}, {ratio['high']:.2f}]"
            rows.append([setting, interval, str(len(each["seeds"]))])
    return rows_table(["refused setting", "times the time of the present ones", "seeds"], rows) if rows else ""


def settings_table(study: dict[str, Any]) -> str:
    """Returns a table of the best settings of the search, as HTML; `study` has the contents of ``.tuning.json``.

    A row has the mean seconds to the target score, how many seeds reached it, the best score and the throughput.
    """
    rows = [
        [
            html.escape(setting_text(each["setting"])),
            text(each["seconds"]),
            f"{sum(time is not None for time in each['times'])} of {len(each['times'])}",
            html.escape(text(each.get("best_score"))),
            number(each["steps_per_s"]),
        ]
        for each in study["settings"][:SHOWN_SETTINGS]
    ]
    return rows_table(["setting", "seconds", "reached", f"best {study['score']}", "env steps/s"], rows) if rows else ""


def importances(study: dict[str, Any]) -> str:
    """Returns a table of how much each searched setting explains the difference between good and bad trials, as HTML.

    The shares, 0 to 1, come from `study`, the contents of the file ``.tuning.json``.
    """
    rows = [[html.escape(name), number(share, percent=True)] for name, share in study["importances"].items()]
    return rows_table(["dimension", "importance (PED-ANOVA)"], rows) if rows else ""


def cost(study: dict[str, Any]) -> str:
    """States as HTML how long the search took, and after how many training runs the saved time exceeds this.

    `study` has the contents of the file ``.tuning.json``.
    """
    failed = [trial for trial in study["trials"] if trial["outcome"] == "failed"]
    lines = [f"The search took {number(study['seconds'])} s with {len(study['trials'])} starts of trials."]
    if study.get("pays_off_after"):
        saved = text((study["verification"] or {}).get("saved_s"))
        lines.append(f"A training run saves {saved} s, so it pays off after {study['pays_off_after']} runs.")
    lines += [f"Failed: {setting_text(trial['setting'])}: {trial['message']}" for trial in failed]
    return "".join(f"<p>{html.escape(line)}</p>" for line in lines)


def setting_text(setting: dict[str, Any]) -> str:
    """Formats settings (name -> value) as command-line arguments; "present settings" if `setting` is empty."""
    return " ".join(f"{name}={value_text(value)}" for name, value in setting.items()) or "present settings"
