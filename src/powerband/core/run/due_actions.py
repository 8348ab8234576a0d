"""DueActions: what follows an iteration on all ranks alike: the end, a log line, an evaluation or a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass

from powerband.core.config import RunConfig
from powerband.core.ranks.agreement import RankAgreement
from powerband.core.ranks.ranks import Ranks
from powerband.core.run.checkpoints.save_timer import SaveTimer
from powerband.core.run.nan.nan_guard import NanGuard
from powerband.core.run.stop_request import StopRequest
from powerband.core.schedule import Every
from powerband.core.telemetry.journal import Journal


@dataclass(frozen=True)
class Due:
    """Actions after an iteration, equal on all ranks.

    Attributes:
        end: End the run.
        log: Write a log line.
        evaluate: Run an evaluation.
        save: Write a checkpoint.
        not_finite: A loss on some rank is not finite; nothing else may be done.
        interrupted: A signal ends the run, so that nothing may delay its last save.
    """

    end: bool
    log: bool
    evaluate: bool
    save: bool
    not_finite: bool
    interrupted: bool = False


class DueActions:
    """Decides after each iteration what is due, by environment steps, by the clock and after a signal.

    Every rank has its own clock and receives its own signals, so the ranks agree on everything that depends on them.

    Attributes:
        stop_request: Requests of this rank to end the run.
        save_timer: Clock of the checkpoints; ``with save_timer:`` surrounds each save.
        saves: Whether the run writes checkpoints before its end.

    Args:
        settings: Intervals and time limit.
        ranks: Group of the ranks that agree.
        journal: Decides when a log line is due.
        guard: Detects losses that are not finite.
    """

    def __init__(self, settings: RunConfig, ranks: Ranks, journal: Journal, guard: NanGuard) -> None:
        self.ranks, self.journal, self.guard = ranks, journal, guard
        self.stop_request = StopRequest(settings.time_limit_s)
        self.save_timer = SaveTimer(settings.save_interval_s)
        self._agreement = RankAgreement(ranks, journal.clock)
        self._eval_every, self._eval_every_s = Every(settings.eval_interval), settings.eval_interval_s
        self._evaluated_at_s = 0.0
        self._save_every = Every(settings.save_interval)
        self.saves = settings.save_interval > 0 or settings.save_interval_s > 0

    def restart(self) -> None:
        """Starts the clocks, at the start or resume of a run."""
        self.save_timer.restart()
        self._agreement.restart()

    def iterations_change(self) -> None:
        """Reschedules the agreements of the ranks; called when the duration of an iteration has changed."""
        self._agreement.restart()

    def after_iteration(self, env_steps: int, elapsed_s: float, training_s: float) -> Due:
        """Returns what is due after an iteration. All ranks must call it.

        Args:
            env_steps: Environment steps of the run so far.
            elapsed_s: Seconds of the run so far.
            training_s: Seconds of the run so far without evaluations.
        """
        end, log, not_finite, evaluate, save = self._agree(elapsed_s, training_s)
        if not_finite:
            return Due(end=True, log=False, evaluate=False, save=False, not_finite=True)
        interrupted = False
        if end:
            reasons = self.ranks.gather(self.stop_request.own_reason())
            self.stop_request.accept(reasons)
            # A preempted run has little time, so it saves first. The evaluation stays due for the resumed run. A signal
            # that arrives after the exchange does not count, because the ranks must agree.
            interrupted = any(signal for signal, _ in reasons)
        evaluate = not interrupted and (self._eval_every.ready(env_steps) or evaluate)
        save = self._save_every.ready(env_steps) or (save and not end)  # a run that ends saves anyway
        return Due(end, log, evaluate, save, not_finite=False, interrupted=interrupted)

    def evaluation_begins(self, training_s: float) -> None:
        """Records an evaluation at `training_s` seconds of training, from which the next interval counts."""
        self._evaluated_at_s = training_s

    def _agree(self, elapsed_s: float, training_s: float) -> list[bool]:
        """Returns (end, log, not finite, evaluate, save), each True if any rank requests it."""
        if not self._agreement.due():
            return [False] * 5
        return self._agreement.any_rank_wants(
            self.stop_request.pending(elapsed_s),
            self.journal.wants_line(),
            self.guard.fault is not None,
            self._eval_every_s > 0 and training_s - self._evaluated_at_s >= self._eval_every_s,
            self.save_timer.due(),
        )

    def state_dict(self) -> dict:
        return {
            "evaluated_at_s": self._evaluated_at_s,
            "eval_every": self._eval_every.state_dict(),
            "save_every": self._save_every.state_dict(),
        }

    def load_state_dict(self, state: dict) -> None:
        self._evaluated_at_s = state.get("evaluated_at_s", 0.0)  # checkpoints of earlier versions do not contain it
        self._eval_every.load_state_dict(state["eval_every"])
        self._save_every.load_state_dict(state["save_every"])
