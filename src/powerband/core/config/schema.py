"""Schema: the fields of a configuration dataclass, and the lookup of fields by name."""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import textwrap
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from operator import attrgetter
from typing import Annotated, Any

from powerband.core.config.flags import Flag
from powerband.core.config.old_options import SOURCES
from powerband.core.config.ranges import MAX_PROCESSES, Range, kinds_of
from powerband.core.config.texts import shortened, some_of
from powerband.core.config.values import describe_kind, parse_value
from powerband.core.errors import ConfigError


@dataclass(frozen=True)
class Field:
    """One setting of a configuration dataclass.

    Attributes:
        path: Qualified name, such as ``off_policy.update_interval``.
        kind: Type annotation with its range, such as ``Annotated[int, Range(at_least=1)]``.
        default: Value if no source sets the field.
        help: Description of the setting: the string under the field in the source code.
    """

    path: str
    kind: Any
    default: Any
    help: str


def fields_of(schema: type) -> dict[str, Field]:
    """Settings of the configuration dataclass `schema` by qualified name, such as ``run.seed``.

    A field whose default is a dataclass is a section. The result has the fields of the section, not the section itself.
    """
    return _fields(schema(), "")


def _fields(section: Any, prefix: str) -> dict[str, Field]:
    schema: Any = type(section)
    kinds = kinds_of(schema)
    docs = field_docs(schema)
    found: dict[str, Field] = {}
    for field in dataclasses.fields(section):
        path, default = f"{prefix}{field.name}", getattr(section, field.name)
        if dataclasses.is_dataclass(default):
            found |= _fields(default, f"{path}.")
        else:
            assert path not in SOURCES, f"{path} is the name of a source"
            found[path] = Field(
                path, kinds[field.name], default, docs.get(field.name) or field.metadata.get("help", "")
            )
    return found


@functools.cache
def field_docs(section: type) -> dict[str, str]:
    """Field name -> string under the field in the source code, for a dataclass and its bases.

    The result is empty if the source code is not available.
    """
    docs: dict[str, str] = {}
    for owner in reversed(section.__mro__[:-1]):
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(owner)))
        except (OSError, TypeError):
            continue
        body = typing.cast(ast.ClassDef, tree.body[0]).body
        for field, below in zip(body, body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(below, ast.Expr):
                if isinstance(below.value, ast.Constant) and isinstance(below.value.value, str):
                    docs[field.target.id] = " ".join(below.value.value.split())
    return docs


class FieldLookup:
    """Finds the setting that an option of the user means, by its full, short or old name.

    Attributes:
        fields: Settings by qualified name.
        notices: Messages for the user about the options found so far.
        algo: The chosen algorithm; "" before the choice, or for a schema without ``algo``.
        preferred: Sections of the chosen algorithm. They resolve an unqualified name that several sections share.

    Args:
        fields: Settings by qualified name.
        old_names: Old name -> new name, or (new name, note); (None, note) refuses the old name with the note.
        sections: Value of ``algo`` -> sections that the algorithm reads; by default the section of the same name.
        help_command: Command that lists all names, for messages.
    """

    def __init__(
        self,
        fields: dict[str, Field],
        old_names: Mapping[str, Any] | None = None,
        sections: Mapping[str, tuple[str, ...]] | None = None,
        help_command: str = "powerband list",
    ) -> None:
        self.fields = fields
        self.old_names = {old.replace("-", "_"): new for old, new in (old_names or {}).items()}
        self.sections = sections or {}
        self.help_command = help_command
        self.notices: list[str] = []
        self.preferred: tuple[str, ...] = ()
        self.algo = ""

    def choose_algo(self, flags: list[Flag]) -> None:
        """Sets `algo` and `preferred` from the last ``algo=`` in `flags`, or from the default.

        Raises:
            ConfigError: The algorithm is unknown.
        """
        if "algo" in self.fields:
            field, given = self.fields["algo"], [flag for flag in flags if flag.name == "algo"]
            algo = str(parse_value(given[-1], field.kind, field.default) if given else field.default)
            self.algo, self.preferred = algo, tuple(self.sections.get(algo, (algo,)))

    def is_unused(self, path: str) -> bool:
        """True if only algorithms other than the chosen one read the setting with the qualified name `path`."""
        section = path.rpartition(".")[0]
        return section not in self.preferred and any(section in of_algo for of_algo in self.sections.values())

    def find(self, flag: Flag) -> tuple[Field, Flag]:
        """Finds the setting that `flag` means.

        Returns:
            The setting, and `flag` after old names, ``--no-NAME`` and GPU options were translated to current settings.

        Raises:
            ConfigError: The name is unknown, ambiguous or refused.
        """
        if flag.name in SOURCES:
            raise ConfigError(f"{flag}: {flag.name} is allowed on the command line only. Write {flag.name}=... there.")
        flag = _gpu_option(flag) if "run.gpus" in self.fields else flag
        if flag.name in self.fields:
            return self.fields[flag.name], flag
        if flag.name in self.old_names:
            return self._renamed(flag)
        paths = self._ending(flag.name)
        if not paths and flag.value is None and flag.name.startswith("no_"):
            off = [path for path in self._ending(flag.name[3:]) if self.fields[path].kind is bool]
            if off:
                paths, flag = off, Flag(flag.name[3:], "false", flag.source)
        if len(paths) > 1:
            paths = [path for path in paths if path.rpartition(".")[0] in self.preferred] or paths
        if len(paths) == 1:
            return self.fields[paths[0]], flag
        if paths and all(self.is_unused(path) for path in paths):
            raise self._of_other_algorithms(flag, paths)
        if paths:
            raise ConfigError(f"{flag}: {len(paths)} sections have an option of this name. Write {' or '.join(paths)}.")
        raise self._unknown(flag)

    def _ending(self, name: str) -> list[str]:
        return [path for path in self.fields if path == name or path.endswith(f".{name}")]

    def _renamed(self, flag: Flag) -> tuple[Field, Flag]:
        entry = self.old_names[flag.name]
        new, note = (entry, "") if isinstance(entry, str) else entry
        if new is None:
            raise ConfigError(f"{flag}: the option {flag.name} is not supported. {note}")
        assert new not in self.old_names, f"old_names maps {flag.name} to {new}, which is an old name itself"
        field, found = self.find(Flag(new, flag.value, flag.source))
        self.notices.append(f"{flag} is read as {field.path}{'; ' + note if note else ''}.")
        return field, found

    def _of_other_algorithms(self, flag: Flag, paths: list[str]) -> ConfigError:
        name = flag.name.rpartition(".")[2]
        own = [path for path in self.fields if path.rpartition(".")[0] in self.preferred and path.endswith(f"_{name}")]
        hint = f"Write {' or '.join(own)}." if own else f"'{self.help_command} algo={self.algo}' lists its options."
        return ConfigError(
            f"{flag}: algo={self.algo} has no option {name}; {', '.join(paths)} are of other algorithms. {hint}"
        )

    def _unknown(self, flag: Flag) -> ConfigError:
        sections = {path.rsplit(".", 1)[0] for path in self.fields if "." in path}
        if flag.name in sections:
            inside = [path for path in self.fields if path.startswith(f"{flag.name}.")]
            return ConfigError(f"{flag}: {flag.name} is a section. Set one of {some_of(inside, 10)}.")
        near: dict[str, None] = {}
        written = shortened(flag.name).lower()  # matching takes quadratic time
        for name in dict.fromkeys((written, written.rsplit(".", 1)[-1])):
            pool = [*self.fields, *(path.rsplit(".", 1)[-1] for path in self.fields), *self.old_names, *SOURCES]
            for match in get_close_matches(name, dict.fromkeys(pool), n=3, cutoff=0.6):
                near |= dict.fromkeys(self._ending(match) or [match])
        hint = f"Nearest: {', '.join(list(near)[:5])}." if near else f"'{self.help_command}' lists all names."
        return ConfigError(f"{flag}: unknown option '{shortened(flag.name)}'. {hint}")


def _gpu_option(flag: Flag) -> Flag:
    """Translates ``--gpu-ids 0,2`` and ``--num-gpus 2`` to ``run.gpus``, and ``--gpus 0 2`` to ``0,2``."""
    name = flag.name.removeprefix("run.")
    if name == "num_gpus":
        count = parse_value(flag, Annotated[int, Range(at_least=0, at_most=MAX_PROCESSES)], 1)
        return Flag("run.gpus", ",".join(map(str, range(count))) or "none", flag.source)
    if name in ("gpus", "gpu_ids"):
        return Flag("run.gpus", ",".join(flag.value) if isinstance(flag.value, tuple) else flag.value, flag.source)
    return flag


def fields_table(schema: type, only: tuple[str, ...] = (), title: str = "") -> str:
    """Returns a help text: every setting of `schema` with default, type and description, one paragraph per section.

    Args:
        schema: Configuration dataclass.
        only: Qualified names to list, in this order; empty lists all.
        title: Heading that replaces the names of the sections.
    """
    fields, lines, section = fields_of(schema), ["", title] * bool(title), ""
    for field in [fields[path] for path in only] if only else fields.values():
        if not title and field.path.rpartition(".")[0] != section:
            section = field.path.rpartition(".")[0]
            lines += ["", section]
        lines.append(f"  {field.path}={value_text(field.default)}  ({describe_kind(field.kind)})")
        lines += [f"      {field.help}"] * bool(field.help)
    return "\n".join(lines)


def not_default(config: Any, paths: Iterable[str]) -> dict[str, Any]:
    """Returns those of the settings `paths` (qualified names) whose value in `config` is not their default."""
    default = type(config)()
    values = {path: attrgetter(path)(config) for path in paths}
    return {path: value for path, value in values.items() if value != attrgetter(path)(default)}


def value_text(value: Any) -> str:
    """Formats `value` as it is written on the command line; the members of a list are joined by commas."""
    return ",".join(map(str, value)) if isinstance(value, (tuple, list)) else str(value)
