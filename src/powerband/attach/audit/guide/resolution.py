"""Resolution: the recipe that a guide is about, and what the configuration says about each of its options."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from powerband.attach.audit.guide.commands import Command, flags_of
from powerband.core.config import ResolvedConfig, resolve
from powerband.core.config.flags import COMMAND_LINE, Flag, from_arguments
from powerband.core.config.old_options import OldOptions
from powerband.core.config.schema import fields_of
from powerband.core.errors import ConfigError
from powerband.core.recipe import Recipe, load_object

Configure = Callable[[str, list[str]], tuple[Recipe, str, ResolvedConfig]]
"""(recipe name, arguments) -> (recipe, stage, configuration); the command line passes this function."""
MACHINE = ("run.gpus", "run.nproc", "run.nnodes")
"""Settings that name hardware."""
FILES = ("config", "exp_config")
EVAL_ONLY = ("pretrained", "config")
"""Options of an evaluation that name files of the guide's own project."""


@dataclass(frozen=True)
class Resolved:
    """What the configuration says about some arguments.

    Attributes:
        status: ``works``, ``notice`` (works, with a message), ``refused``, ``tool`` (a command of the machine) or
            ``unknown`` (the guide does not contain what decides).
        message: The reason or the notices.
        paths: Qualified names of the settings that the arguments set.
        stage: Stage of the recipe.
        config: The configuration; None if it was refused or not needed.
        absent_gpus: Whether the arguments name GPUs that this machine lacks.
    """

    status: str
    message: str = ""
    paths: tuple[str, ...] = ()
    stage: str = ""
    config: Any = None
    absent_gpus: bool = False


class GuideRecipe:
    """A recipe, as a guide uses it.

    Args:
        recipe: The recipe.
        configure: Function that resolves its arguments.
    """

    def __init__(self, recipe: Recipe, configure: Configure) -> None:
        self.recipe, self.configure = recipe, configure
        self.fields = fields_of(recipe.Config)
        self.old = {_plain(name) for name in (*recipe.old_names, *recipe.old_evaluation_names)}
        self.old |= {_plain(name.split("=")[0]) for name in recipe.old_arguments}
        self.last = {path.rpartition(".")[2] for path in self.fields}
        self._cache: dict[tuple[tuple[str, ...], int], Resolved] = {}

    def knows(self, name: str) -> bool:
        """Returns whether the recipe has an option or an old option of this name."""
        plain = _plain(name)
        return plain in self.old or plain in self.fields or plain in self.last

    def resolved(self, words: Iterable[str], ranks: int = 0) -> Resolved:
        """Resolves arguments of ``powerband train RECIPE``.

        Args:
            words: The arguments.
            ranks: Processes that a launcher starts; 0 without one.
        """
        key = (tuple(words), ranks)
        if key not in self._cache:
            self._cache[key] = self._resolved(list(key[0]), ranks)
        return self._cache[key]

    def _resolved(self, words: list[str], ranks: int) -> Resolved:
        try:
            with _as_rank(ranks):
                words = [word for word in words if word != "--trust"]  # a guide is the text of someone else
                recipe, stage, found = self.configure(self.recipe.name, words)
                recipe.check_sizes(found.config, ranks or max(1, found.config.run.nproc))
        except ConfigError as error:
            without = _without(words, ("gpus", "gpu_ids", "num_gpus", "run.gpus", "device", "networks.device"))
            if without != words and "GPU" in str(error):
                again = self._resolved(without, ranks)
                if again.status != "refused":
                    return replace(again, absent_gpus=True)
            return Resolved("refused", str(error))
        paths = tuple(path for path, source in found.sources.items() if source != "default")
        given = tuple(path for path, source in found.sources.items() if source == COMMAND_LINE)
        message = " ".join(dict.fromkeys(found.notices))
        return Resolved("notice" if message else "works", message, given or paths, stage, found.config)

    def command(self, command: Command) -> Resolved:
        """Resolves a command or a YAML block of the guide, without running anything."""
        if command.kind in ("tool", "text"):
            return Resolved("tool")
        if command.kind == "script":
            return Resolved("unknown", "script")
        if command.kind == "yaml":
            with tempfile.TemporaryDirectory(prefix="powerband-guide-") as folder:
                path = Path(folder) / "guide.yaml"
                path.write_text(command.text, encoding="utf-8")
                found = self._resolved(["--config", str(path)], 0)
            message = found.message.replace(f"{path}:", "line ").replace(str(path), "the block")
            return replace(found, message=_true_lines(message, command.line))
        if command.kind == "eval":
            return self._evaluation(list(command.words))
        missing = [
            str(flag.value)
            for flag in flags_of(command)
            if flag.name in FILES and flag.value and not Path(str(flag.value)).expanduser().exists()
        ]
        found = self.resolved(_without(list(command.words), FILES) if missing else command.words, command.ranks)
        return replace(found, status="unknown", message=missing[0]) if missing and found.status != "refused" else found

    def _evaluation(self, words: list[str]) -> Resolved:
        """Resolves the options of an evaluation; its run need not exist."""
        if self.recipe.Evaluation is None:
            return Resolved("refused", f"Recipe '{self.recipe.name}' has no evaluation.")
        if words and "=" not in words[0] and not words[0].startswith("-"):
            words = words[1:]
        try:
            old = OldOptions(self.recipe.old_evaluation_names)
            found = resolve(load_object(self.recipe.Evaluation), _without(words, EVAL_ONLY), old=old)
        except ConfigError as error:
            return Resolved("refused", str(error))
        return Resolved("notice" if found.notices else "works", " ".join(found.notices))

    def option(self, name: str, value: str, stage_words: Iterable[str] = ()) -> Resolved:
        """Resolves one option; the stage is that of the arguments next to it.

        Args:
            name: Name of the option, as in the guide.
            value: Its value as text.
            stage_words: Other arguments of the same command or block.
        """
        with_stage = [word for word in self.stage_words(stage_words) if not word.startswith(f"{name}=")]
        return self.resolved([*with_stage, f"{_plain(name)}={value}"])

    def stage_words(self, words: Iterable[str]) -> list[str]:
        """Returns those of some arguments that select a stage, and nothing else."""
        written = {_plain(each).lower() for each in self.recipe.old_arguments}
        found = [word for word in words if _plain(word.removeprefix("--")).lower() in written]
        return [word for word in found if self.resolved([word]).stage != self.recipe.default_stage]


def recipe_of(names: Mapping[str, int], text: str, recipes: Iterable[GuideRecipe]) -> GuideRecipe:
    """Returns the recipe that a guide is about: the one that knows most of its names, rare names counting more.

    Args:
        names: Names of options in the guide -> number of mentions.
        text: The guide.
        recipes: All recipes.

    Raises:
        ConfigError: Two recipes or none match.
    """
    recipes = list(recipes)
    scores = dict.fromkeys((each.recipe.name for each in recipes), 0.0)
    for name in names:
        knowing = [each for each in recipes if each.knows(name)]
        for each in knowing:
            scores[each.recipe.name] += (2.0 if _plain(name) in each.old else 1.0) / len(knowing) ** 2
    for name in scores:
        scores[name] += 2.0 * bool(re.search(rf"\b{re.escape(name)}\b", text, re.I))
    ranked = sorted(recipes, key=lambda each: -scores[each.recipe.name])
    first, second = (scores[each.recipe.name] for each in ranked[:2])
    if first < 1 or first < 1.2 * second:
        known = ", ".join(each.recipe.name for each in recipes)
        near = f" It fits {ranked[0].recipe.name} and {ranked[1].recipe.name} alike." if first >= 1 else ""
        raise ConfigError(f"The options of the guide do not show its recipe.{near} Write recipe=NAME, one of {known}.")
    return ranked[0]


@contextlib.contextmanager
def _as_rank(ranks: int) -> Iterator[None]:
    """Sets the environment variables that torchrun gives to the first of several processes."""
    names = ("RANK", "WORLD_SIZE")
    before = {name: os.environ.get(name) for name in names}
    if ranks > 1:
        os.environ.update(RANK="0", WORLD_SIZE=str(ranks))
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def _plain(name: str) -> str:
    return name.lstrip("-").replace("-", "_")


def _without(words: list[str], names: tuple[str, ...]) -> list[str]:
    """Returns arguments without the options of some names."""
    head = words[:1] if words and "=" not in words[0] and not words[0].startswith("-") else []
    try:
        flags = from_arguments(words[len(head) :])
    except ConfigError:
        return words
    return [*head, *(part for flag in flags if flag.name not in names for part in _argument(flag))]


def _argument(flag: Flag) -> list[str]:
    if flag.value is None:
        return [f"--{flag.name}"]
    return [f"{flag.name}={flag.value}"] if isinstance(flag.value, str) else [f"--{flag.name}", *flag.value]


def _true_lines(message: str, first: int) -> str:
    """Replaces line numbers of a block by those of the guide."""
    return re.sub(r"\bline (\d+)", lambda match: f"line {int(match[1]) + first - 1}", message)
