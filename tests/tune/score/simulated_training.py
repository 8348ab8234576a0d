"""Simulated training for tests of the search: the curve of every setting is known, and no process starts."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from pathlib import Path
from threading import Event

from powerband.tune.score.curve import CurvePoint, time_to_score
from powerband.tune.score.trials.trial import TrialRun

START_S = 4.0
"""Seconds that a process takes to start and to evaluate."""


class SimulatedTraining:
    """A machine on which the score rises to 100 like ``1 - exp(-t / scale)``.

    Args:
        optimum: Learning rate with the shortest time; a factor f away from it takes ``f ** 0.7`` times as long.
        scale: Seconds in which the present settings reach 63 at the optimal rate.
        noise: Relative standard deviation of the scale over seeds.
        best: Highest score that any run reaches.
        fails: Text in the command of a run that fails.
        interval: Whether evaluations have the interval of the command instead of 0.5 s.

    Attributes:
        now: Clock of the machine, in seconds.
        commands: Commands of all starts.
    """

    def __init__(
        self,
        optimum: float = 1.2e-3,
        scale: float = 10.0,
        noise: float = 0.1,
        best: float = 100.0,
        fails: str = "",
        interval: bool = False,
    ) -> None:
        self.interval = interval
        self.optimum, self.scale, self.noise, self.best, self.fails = optimum, scale, noise, best, fails
        self.now = 1000.0
        self.commands: list[list[str]] = []
        self.trained: dict[Path, tuple[list[str], float]] = {}

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now

    def true_scale(self, command: Sequence[str]) -> float:
        """Seconds in which a setting reaches 63 without noise."""
        options = dict(word.split("=", 1) for word in command if "=" in word)
        rate, envs = float(options.get("ppo.lr", 3e-4)), int(options.get("on_policy.num_envs", 8))
        return self.scale * math.exp(0.7 * abs(math.log(rate / self.optimum))) * (1 + 0.1 * abs(math.log2(envs / 16)))

    def run_trial(
        self,
        command: Sequence[str],
        folder: Path,
        score: str,
        target: float,
        limit_s: float,
        deadline: float,
        ended: Event | None = None,
    ) -> TrialRun:
        """Stands in for `trial.run_trial`."""
        self.commands.append(list(command))
        command, began_s = self.trained.get(folder, (list(command), 0.0))
        (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
        if self.fails and any(self.fails in word for word in command):
            self.now += START_S
            return TrialRun("failed", [], 0, 0.0, START_S, "a loss is not finite")
        seed = next(word for word in command if word.startswith("run.seed="))
        draw = random.Random(f"{seed} {[word for word in command if 'run_dir' not in word]}")
        scale = self.true_scale(command) * math.exp(draw.gauss(0, self.noise))
        interval = next((word for word in command if word.startswith("run.eval_interval_s=")), "")
        every_s = float(interval.partition("=")[2]) if self.interval else 0.5
        points, seconds = [], 0.0
        while seconds < limit_s and time_to_score(points, target) is None:
            seconds += every_s
            value = self.best * (1 - math.exp(-seconds / scale)) + draw.gauss(0, 1)
            points.append(CurvePoint(int(1000 * seconds), seconds, value))
            if seconds > began_s and self.now + START_S + seconds - began_s >= deadline:
                break
        self.now += START_S + seconds - began_s
        self.trained[folder] = command, seconds
        outcome = "reached" if time_to_score(points, target) is not None else "paused"
        if outcome == "paused" and seconds < limit_s:
            outcome = "stopped"
        return TrialRun(outcome, points, int(1000 * seconds), seconds, START_S + seconds - began_s)
