"""Audit of a tuning guide: reads it, resolves its commands, measures its claims, and judges them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from powerband.attach.audit.guide.annotate import annotated
from powerband.attach.audit.guide.claims import Claim, ClaimReader
from powerband.attach.audit.guide.commands import ASSIGNMENT, Command, commands_in, mentions_in
from powerband.attach.audit.guide.comparison import Comparison, Pair
from powerband.attach.audit.guide.markdown import blocks_of, language_of
from powerband.attach.audit.guide.options import OptionTable
from powerband.attach.audit.guide.pairs import PairMeter, Run
from powerband.attach.audit.guide.resolution import Configure, GuideRecipe, Resolved, recipe_of
from powerband.attach.audit.guide.sentences import GuideWording, machine_text
from powerband.attach.audit.guide.verdict import ClaimVerdict, Judge, VerdictName
from powerband.core.config.ranges import Range, check_ranges
from powerband.core.machine.device import cores, host_facts
from powerband.core.recipe import Recipe
from powerband.tune.measure.in_subprocesses import measure_in_subprocesses

MAX_COMMANDS = 1000
"""Most commands of one guide; later ones are left out."""
VERDICT_ORDER: tuple[VerdictName, ...] = ("confirmed", "refuted", "no-effect", "refused", "not-measurable")


@dataclass(frozen=True)
@check_ranges
class GuideOptions:
    """Options of ``powerband audit GUIDE.md``."""

    seconds: Annotated[float, Range(at_least=0, at_most=86400)] = 600.0
    """Budget of the measurement in seconds; 0 resolves the commands and measures nothing."""
    recipe: str = ""
    """Recipe that the guide is about; empty finds it by the names of the options."""
    out: str = ""
    """File for the guide with its results; empty prints it."""
    lang: Literal["auto", "en", "zh"] = "auto"
    """Language of the results; auto is the language of the guide."""


@dataclass(frozen=True)
class GuideResult:
    """Result of the audit of a guide.

    Attributes:
        recipe: Recipe that the guide is about.
        machine: Text that names this machine.
        commands: Commands and YAML blocks, and what the configuration says about them.
        verdicts: Verdicts about the claims.
        evidence: One sentence per verdict.
        runs: Number of short runs.
        seconds: Wall time of the measurement.
        complete: False if Ctrl-C ended the audit early.
        markdown: The guide with its results.
    """

    recipe: str
    machine: str
    commands: list[tuple[Command, Resolved]]
    verdicts: list[ClaimVerdict]
    evidence: list[str]
    runs: int
    seconds: float
    complete: bool
    markdown: str

    def to_dict(self) -> dict[str, Any]:
        """Returns the JSON object."""
        return {
            "recipe": self.recipe,
            "machine": self.machine.strip(),
            "runs": self.runs,
            "seconds": round(self.seconds, 1),
            "complete": self.complete,
            "claims": [each.to_dict(text) for each, text in zip(self.verdicts, self.evidence, strict=True)],
            "commands": [
                {
                    "line": command.line,
                    "text": command.text,
                    "status": found.status,
                    "message": found.message,
                    "settings": list(found.paths),
                    "absent_gpus": found.absent_gpus,
                }
                for command, found in self.commands
            ],
        }


class GuideAudit:
    """Audits one guide.

    Args:
        text: The guide.
        options: Options of the audit.
        recipes: All recipes, or the only one to consider.
        configure: Function that resolves the arguments of a recipe.
        progress: Function of a text and the spent share of the budget.
        run: Function that makes one short run.
    """

    def __init__(
        self,
        text: str,
        options: GuideOptions,
        recipes: Sequence[Recipe],
        configure: Configure,
        progress: Callable[[str, float], None],
        run: Run = measure_in_subprocesses,
    ) -> None:
        self.text, self.options, self.progress, self.run_once = text, options, progress, run
        self.lines = text.splitlines()
        self.blocks = blocks_of(self.lines)
        every = [each for block in self.blocks if block.kind == "code" for each in commands_in(block, self.lines)]
        self.commands = every[:MAX_COMMANDS]
        candidates = [GuideRecipe(recipe, configure) for recipe in recipes]
        self.guide = candidates[0] if options.recipe else recipe_of(self._names(), text, candidates)

    def _names(self) -> Counter[str]:
        """Names of options in commands, YAML and assignments."""
        names = Counter(each.name for command in self.commands for each in mentions_in(command))
        for block in self.blocks:
            if block.kind not in ("code", "heading"):
                for line in self.lines[block.start : block.end]:
                    names.update(match[1] for match in ASSIGNMENT.finditer(line))
        return names

    def run(self) -> GuideResult:
        """Runs the audit. Ctrl-C ends it early, with the results that are known."""
        facts = host_facts()["gpus"]
        gpu = facts[0]["name"] if facts else ""
        lang = language_of(self.text) if self.options.lang == "auto" else self.options.lang
        machine = machine_text(lang, cores(), gpu)
        say = GuideWording(lang, self.guide.recipe.name, machine, len(facts), self.options.seconds)
        resolved = [(command, self.guide.command(command)) for command in self.commands]
        options = OptionTable(self.guide)
        options.read(self.lines, self.blocks, self.commands)
        judge = Judge(self.guide, len(facts))
        plans: list[tuple[Claim, Pair | ClaimVerdict]] = []
        for claim in ClaimReader(self.lines, self.blocks, options).claims():
            plans.append((claim, judge.plan(claim)))
        found: dict[Pair, Comparison] = {}
        meter = PairMeter(self.guide, self.options.seconds, self.progress, self.run_once)
        complete = True

        def decided(pair: Pair, comparison: Comparison) -> bool:
            sides = {pair: comparison, pair.inverted(): comparison.inverted()}
            now = [
                judge.judged(claim, sides[plan]) for claim, plan in plans if isinstance(plan, Pair) and plan in sides
            ]
            return all(each.reason not in ("budget", "noisy") for each in now)

        if self.options.seconds:
            wanted: Counter[Pair] = Counter()
            for _, plan in plans:
                if isinstance(plan, Pair):
                    wanted[plan.inverted() if plan.inverted() in wanted else plan] += 1
            try:
                meter.measure([pair for pair, _ in wanted.most_common()], found, decided)
            except KeyboardInterrupt:
                complete, say.interrupted = False, True
        found |= {pair.inverted(): each.inverted() for pair, each in found.items()}
        verdicts = [
            plan if isinstance(plan, ClaimVerdict) else judge.judged(claim, found.get(plan)) for claim, plan in plans
        ]
        say.known = {
            (each.claim.option, each.claim.value): each.comparison
            for each in verdicts
            if each.comparison is not None
            and each.comparison.pairs
            and each.claim.value != options.defaults.get(each.claim.option)
        }
        evidence = [say.sentence(each) for each in verdicts]
        seconds = self.options.seconds - meter.left_s()
        summary = self._summary(say, verdicts, meter.runs, seconds)
        markdown = annotated(self.text, verdicts, resolved, say, summary)
        return GuideResult(
            self.guide.recipe.name, machine, resolved, verdicts, evidence, meter.runs, seconds, complete, markdown
        )

    def _summary(self, say: GuideWording, verdicts: list[ClaimVerdict], runs: int, seconds: float) -> str:
        counts = Counter(each.verdict for each in verdicts)
        between = "，" if say.lang == "zh" else ", "
        listed = between.join(f"{counts[name]} {say.verdict(name)}" for name in VERDICT_ORDER if counts[name])
        values = {"runs": runs, "seconds": seconds, "claims": len(verdicts), "counts": listed or "0"}
        return say("summary", recipe=self.guide.recipe.name, machine=say.machine.strip(), **values)
