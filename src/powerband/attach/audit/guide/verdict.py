"""Verdicts: compares what a guide promises with what the runs show, or states why nothing was measured."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from powerband.attach.audit.guide.claims import Claim
from powerband.attach.audit.guide.comparison import MIN_PAIRS, Comparison, Pair
from powerband.attach.audit.guide.resolution import GuideRecipe

VerdictName = Literal["confirmed", "refuted", "no-effect", "not-measurable", "refused"]
EQUAL = 0.05
"""Largest change of a rate or of memory that counts as none."""
CLOSE = 0.9
"""Share of a promised factor that confirms it."""
BATCH_SIZES = ("batch_size", "minibatch_rows", "batch_size_per_rank")
MEASURED_KINDS = ("speed", "memory", "updates")


@dataclass(frozen=True)
class ClaimVerdict:
    """Verdict about one claim.

    Attributes:
        claim: The claim.
        verdict: The verdict.
        reason: Why nothing was measured: ``gpus``, ``cuda``, ``learning``, ``absolute``, ``no-option``, ``no-value``,
            ``obsolete``, ``same``, ``slow``, ``failed``, ``budget``, ``noisy``, ``refused``; "" for a measured claim.
        figure: The measured quantity: ``rate``, ``rows``, ``memory_bytes`` or ``updates_per_step``.
        ratio: Ratio with to without the option, low and high.
        detail: Message of the configuration or of a run.
        comparison: The runs.
    """

    claim: Claim
    verdict: VerdictName
    reason: str = ""
    figure: str = ""
    ratio: tuple[float, float, float] | None = None
    detail: str = ""
    comparison: Comparison | None = field(default=None, repr=False)

    def to_dict(self, evidence: str) -> dict[str, Any]:
        """Returns the claim as a JSON value.

        Args:
            evidence: The sentence about the verdict.
        """
        claim, ratio = self.claim, self.ratio
        return {
            "line": claim.line,
            "text": claim.text,
            "option": claim.option,
            "value": claim.value,
            "before": claim.before,
            "effect": claim.effect.kind,
            "claimed": [claim.effect.low, claim.effect.high] if claim.effect.low else None,
            "verdict": self.verdict,
            "reason": self.reason,
            "evidence": evidence,
            "figure": self.figure,
            "measured": {"ratio": ratio[0], "low": ratio[1], "high": ratio[2]} if ratio else None,
            "comparison": self.comparison.to_dict() if self.comparison and self.comparison.pairs else None,
        }


class Judge:
    """Decides which claims are measured, and judges them.

    Args:
        guide: Recipe of the guide.
        gpus: Number of GPUs of this machine.
    """

    def __init__(self, guide: GuideRecipe, gpus: int) -> None:
        self.guide, self.gpus = guide, gpus

    def plan(self, claim: Claim) -> Pair | ClaimVerdict:
        """Returns the runs that a claim needs, or a verdict without a run."""
        option = claim.option
        if option:
            found = self.guide.option(option, claim.value or "1", claim.stage_words)
            if claim.value and found.status == "refused":
                return ClaimVerdict(claim, "refused", "refused", detail=found.message)
        if reason := self._unmeasurable(claim):
            return ClaimVerdict(claim, "not-measurable", reason)
        if not found.paths:
            return ClaimVerdict(claim, "not-measurable", "obsolete", detail=found.message)
        path = self._path(option, found.paths)
        if path.startswith(("run.gpus", "run.nproc", "run.nnodes")):
            return ClaimVerdict(claim, "not-measurable", "gpus")
        algo = self.guide.recipe.algorithm_of(found.config)
        fixed = [f"algo={algo}"] if algo else []
        before = self._before(claim, path)
        if before is None:
            return ClaimVerdict(claim, "not-measurable", "no-value")
        words = tuple(self.guide.stage_words(claim.stage_words))
        plain = option.lstrip("-").replace("-", "_")
        without = [f"{plain}={before}"] if before else []
        return Pair((*fixed, *without), (*fixed, f"{plain}={claim.value}"), path, words)

    def _unmeasurable(self, claim: Claim) -> str:
        if claim.effect.kind == "updates":  # the number of updates is the same on every machine
            return "" if claim.option and claim.value else "no-value" if claim.option else "no-option"
        if claim.needs == "gpus" and self.gpus < 2:
            return "gpus"
        if claim.effect.kind == "learning":
            return "learning"
        if (claim.needs == "cuda" or claim.effect.kind == "utilisation") and not self.gpus:
            return "cuda"
        if claim.effect.kind == "absolute":
            return "absolute"
        if claim.effect.kind not in MEASURED_KINDS:
            return "utilisation"
        if not claim.option:
            return "no-option"
        return "" if claim.value else "no-value"

    def _path(self, option: str, paths: tuple[str, ...]) -> str:
        last = option.replace("-", "_").rpartition(".")[2]
        return next((path for path in paths if path.endswith(last)), paths[0])

    def _before(self, claim: Claim, path: str) -> str | None:
        """The value to compare with: "" for the recipe's default, None if there is none."""
        if claim.before:
            return claim.before
        kind = self.guide.fields[path].kind
        if kind is bool:
            return "false" if claim.value.lower() in ("true", "1", "yes", "on") else "true"
        if path == "run.precision":
            return "fp32"
        return ""

    def judged(self, claim: Claim, comparison: Comparison | None) -> ClaimVerdict:
        """Judges a claim by its runs; without runs it is not measurable within the budget."""
        if comparison is None:
            return ClaimVerdict(claim, "not-measurable", "budget")
        if comparison.problem == "refused":
            return ClaimVerdict(claim, "refused", "refused", detail=comparison.message)
        if not comparison.pairs:
            return ClaimVerdict(claim, "not-measurable", comparison.problem or "budget", detail=comparison.message)
        effect, figure, factor = claim.effect, "rate", 1.0
        if effect.kind == "memory":
            figure = "memory_bytes"
        elif effect.kind == "updates":
            figure = "updates_per_step"
        elif effect.throughput and comparison.pair.path.rpartition(".")[2].endswith(BATCH_SIZES):
            figure, factor = "updates_per_s", comparison.values[1] / max(comparison.values[0], 1)
        ratio = comparison.ratio(figure, factor)
        figure = "rows" if factor != 1.0 else figure
        if ratio is None:
            return ClaimVerdict(claim, "not-measurable", "obsolete", comparison=comparison)
        if figure == "updates_per_step":
            exact = comparison.after[0].updates_per_step, comparison.before[0].updates_per_step
            ratio = (exact[0] / exact[1],) * 3 if exact[0] and exact[1] else ratio
        elif comparison.pairs < MIN_PAIRS:
            return ClaimVerdict(claim, "not-measurable", "budget", figure, ratio, comparison=comparison)
        verdict = verdict_of(effect.direction, effect.low, effect.high, ratio)
        reason = "noisy" if verdict == "not-measurable" else ""
        return ClaimVerdict(claim, verdict, reason, figure, ratio, comparison=comparison)


def verdict_of(direction: int, low: float, high: float, ratio: tuple[float, float, float]) -> VerdictName:
    """Compares a promise with a measured ratio.

    Args:
        direction: 1 for more, -1 for less, 0 for a promise of no change.
        low: Smallest promised factor; 0 without a number.
        high: Largest promised factor; 0 without a number.
        ratio: Measured ratio, and its interval.

    Returns:
        The verdict; ``not-measurable`` if the interval is too wide to decide.
    """
    middle, least, most = ratio
    if direction < 0:
        low, high = (1 / high, 1 / low) if low and high else (0.0, 0.0)
        middle, least, most = 1 / middle, 1 / most, 1 / least
    unchanged = least > 1 - 2 * EQUAL and most < 1 + 2 * EQUAL and abs(middle - 1) <= EQUAL
    if direction == 0:
        if unchanged:
            return "confirmed"
        return "refuted" if least > 1 or most < 1 else "not-measurable"
    if low:
        if least >= CLOSE * low and least > 1:
            return "confirmed"
        return "refuted" if most < CLOSE * low else "not-measurable"
    if unchanged:
        return "no-effect"
    if least > 1:
        return "confirmed"
    return "refuted" if most < 1 else "not-measurable"
