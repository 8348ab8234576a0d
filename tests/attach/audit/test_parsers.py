"""Options of further parsers, and values that JSON has no type for."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from powerband.attach.audit.options import ScriptOption, options_of
from powerband.attach.audit.short_run import Limits, ShortRun, run_short
from powerband.attach.audit.values import values_to_try

ARGS = """
from dataclasses import dataclass
@dataclass
class Args:
    lr: float = 0.1
    dead: int = 3
"""
GIN = """
import gin
@gin.configurable
def train(lr=1.0): print("lr", lr)
@gin.configurable
def other(dead=1): pass
gin.parse_config(["train.lr = 0.1", "other.dead = 3"])
train()
"""
HUGGING_FACE = (
    ARGS
    + """
from transformers import HfArgumentParser
args, = HfArgumentParser(Args).parse_args_into_dataclasses()
print("lr", args.lr)
"""
)
DRACCUS = (
    ARGS
    + """
import draccus
args = draccus.parse(Args)
print("lr", args.lr)
"""
)
PYRALLIS = DRACCUS.replace("draccus", "pyrallis")
TYRO_FUNCTION = """
import tyro
def main(lr: float = 0.1, dead: int = 3):
    print("lr", lr)
tyro.cli(main)
"""
TOML = """
import tomllib
with open("config.toml", "rb") as file:
    cfg = tomllib.load(file)
print("lr", cfg["optim"]["lr"])
"""
STRUCTURED = """
from dataclasses import dataclass, field
from typing import List, Optional
from omegaconf import MISSING, OmegaConf
@dataclass
class Config:
    lr: float = 0.1
    absent: Optional[List[int]] = None
    missing: List[int] = MISSING
    sizes: List[int] = field(default_factory=lambda: [1, 2])
cfg = OmegaConf.structured(Config)
print("lr", cfg.lr, cfg.sizes)
"""
TYPES = """
import argparse, enum, fractions, pathlib
class Colour(enum.Enum):
    RED = 1
    BLUE = 2
parser = argparse.ArgumentParser()
parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path("runs"))
parser.add_argument("--colour", type=Colour.__getitem__, default=Colour.RED, choices=list(Colour))
parser.add_argument("--layers", default={1, 2})
parser.add_argument("--sizes", default=(3, 4))
parser.add_argument("--share", default=fractions.Fraction(1, 3))
args = parser.parse_args()
print(repr(args.folder), args.colour is Colour.BLUE, args.layers, args.sizes, args.share)
"""


def run(folder: Path, script: str, changes: dict[str, Any]) -> tuple[ShortRun, dict[str, ScriptOption]]:
    """Runs a script in a copy of `folder`. Neither the script nor the instrumentation may fail."""
    (folder / "train.py").write_text(script)
    found = run_short([sys.executable, "train.py"], folder, changes, Limits(most_s=90))
    assert found.status == 0, found.console
    assert not found.lines("failure"), found.lines("failure")
    return found, {option.last_name: option for option in options_of(found)}


@pytest.mark.parametrize(
    ("package", "script", "option"),
    [
        ("transformers", HUGGING_FACE, "dataclass:lr"),
        ("draccus", DRACCUS, "dataclass:lr"),
        ("pyrallis", PYRALLIS, "dataclass:lr"),
        ("tyro", TYRO_FUNCTION, "dataclass:lr"),
        ("gin", GIN, "gin:__main__.train.lr"),
    ],
)
def test_options_are_found_changed_and_their_reads_tracked(
    package: str, script: str, option: str, tmp_path: Path
) -> None:
    pytest.importorskip(package)
    found, options = run(tmp_path, script, {option: 0.5})
    assert options["dead"].value == 3
    assert "lr 0.5" in found.console and [line["id"] for line in found.lines("changed")] == [option]
    assert options["lr"].reads or options["lr"].bulk
    assert options["dead"].never_read or package == "tyro"  # the reads of a function's arguments cannot be seen


def test_structured_configurations_may_have_missing_lists(tmp_path: Path) -> None:
    pytest.importorskip("omegaconf")
    found, options = run(tmp_path, STRUCTURED, {"omegaconf:lr": 0.5})
    assert set(options) == {"lr", "sizes"} and options["lr"].reads and "lr 0.5 [1, 2]" in found.console


def test_toml_dictionaries_are_tracked(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("[optim]\nlr = 0.1\ndead = 3\n")
    found, options = run(tmp_path, TOML, {"file:optim.lr": 0.5})
    assert "lr 0.5" in found.console
    assert options["lr"].reads == ["train.py:5"] and options["dead"].never_read
    assert options["dead"].where == "config.toml:3"


def test_paths_enumerations_and_sets_keep_their_type(tmp_path: Path) -> None:
    changes = {"folder": "other", "colour": "BLUE", "layers": [5], "sizes": [6, 8], "share": "x"}
    found, options = run(tmp_path, TYPES, {f"argparse:{name}": value for name, value in list(changes.items())[:4]})
    assert "PosixPath('other') True {5} (6, 8) 1/3" in found.console
    tried = {name: values_to_try(option, [], 10) for name, option in options.items()}
    assert (options["folder"].value, tried["folder"]) == ("runs", ["runs_x"])
    assert tried["colour"] == ["BLUE"] and [2, 4] in tried["layers"] and [6, 8] in tried["sizes"]
    assert tried["share"] == []  # a value of this type cannot be built


POST_INIT = """
from dataclasses import dataclass
from transformers import HfArgumentParser
@dataclass
class Args:
    lr: float = 0.1
    batch: int = 8
    def __post_init__(self): self.lr *= 4
@dataclass
class Derived:
    lr: float = 0.1
    batch: int = 8
    def __post_init__(self): self.half = self.batch // 2
args, = HfArgumentParser(Args).parse_args_into_dataclasses()
derived, = HfArgumentParser(Derived).parse_args_into_dataclasses()
print("values", args.lr, args.batch, derived.half)
"""


def test_a_change_of_a_field_does_not_repeat_what_post_init_has_done(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    found, _ = run(tmp_path, POST_INIT, {"dataclass:batch": 6})
    assert "values 0.4 6 3" in found.console


COPIES = """
import json
with open("config.json") as file:
    cfg = json.load(file)
print(type(cfg)(cfg)["lr"], cfg.fromkeys(["a"], 1)["a"], type(cfg)(b=2)["b"])
"""


def test_the_type_of_a_tracked_dictionary_can_be_called(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"lr": 0.1}')
    found, options = run(tmp_path, COPIES, {})
    assert "0.1 1 2" in found.console and not options["lr"].never_read
