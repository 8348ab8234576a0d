"""Short runs of small scripts without torch: options, reads, changes, copies."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from powerband.attach.audit.options import ScriptOption, options_of
from powerband.attach.audit.short_run import Limits, ShortRun, run_short

ARGPARSE = """
import argparse, copy, pickle
parser = argparse.ArgumentParser()
for name, value in (("--lr", 0.1), ("--dead", 3), ("--replaced", 4), ("--copied", 5)):
    parser.add_argument(name, type=type(value), default=value)
args = parser.parse_args()
assert type(args) is argparse.Namespace and args == copy.deepcopy(args)
args.replaced = 1
print("lr", args.lr, args.replaced, copy.copy(args).copied)
open("out.txt", "w").write("x")
"""
YAML = """
import json, yaml
cfg = yaml.safe_load(open("config.yaml"))
assert cfg == {"optim": {"lr": 0.1, "dead": 2}, "size": 3} and json.loads(json.dumps({"a": 1})) == {"a": 1}
yaml.safe_dump({"copied": cfg["optim"].copy()["lr"]})
print(cfg["size"])
"""
BULK = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
print(parser.parse_args())
"""
DATACLASS = """
from dataclasses import asdict, dataclass
import tyro

@dataclass(frozen=True)
class Args:
    lr: float = 0.1
    dead: int = 3

args = tyro.cli(Args)
print("lr", args.lr)
"""
HYDRA = """
import hydra

@hydra.main(config_path=".", config_name="conf", version_base=None)
def main(cfg):
    print("lr", cfg.optim.lr, cfg.rate)

main()
"""
ABSL = """
from absl import app, flags
flags.DEFINE_float("lr", 0.1, "")
flags.DEFINE_integer("dead", 3, "")
app.run(lambda _: print("lr", flags.FLAGS.lr))
"""


def run(folder: Path, script: str, changes: dict[str, Any] | None = None) -> ShortRun:
    """Runs a script in a copy of `folder`."""
    (folder / "train.py").write_text(script)
    return run_short([sys.executable, "train.py"], folder, changes or {}, Limits(most_s=30))


def by_name(found: ShortRun) -> dict[str, ScriptOption]:
    """The options by name; the run must not have failed, in the script or in the instrumentation."""
    assert found.status == 0, found.console
    assert not found.lines("failure"), found.lines("failure")
    return {option.name: option for option in options_of(found)}


def test_argparse_reads_are_tracked_and_values_changed(tmp_path: Path) -> None:
    found = run(tmp_path, ARGPARSE, {"argparse:lr": 0.5})
    options = by_name(found)
    assert options["lr"].reads == ["train.py:9"] and options["lr"].where == "train.py:5"
    assert options["dead"].never_read and options["copied"].reads
    assert options["replaced"].never_read and options["replaced"].overwritten == "train.py:8"
    assert "lr 0.5 1 5" in found.console
    assert list(found.files) == ["out.txt"] and not (tmp_path / "out.txt").exists()


def test_dictionaries_of_yaml_are_tracked(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("optim:\n  lr: 0.1\n  dead: 2\nsize: 3\n")
    options = by_name(run(tmp_path, YAML))
    assert options["size"].reads == ["train.py:6"] and options["optim.dead"].where == "config.yaml:3"
    assert options["optim.lr"].reads and not options["optim.dead"].reads


def test_printing_all_values_is_a_bulk_read(tmp_path: Path) -> None:
    option = by_name(run(tmp_path, BULK))["lr"]
    assert option.bulk and not option.reads and not option.never_read
    assert all("(train.py:5)" in place for place in option.bulk), "the line of the script, not that of the library"


def test_dataclasses_are_tracked(tmp_path: Path) -> None:
    pytest.importorskip("tyro")
    found = run(tmp_path, DATACLASS, {"dataclass:lr": 0.5})
    options = by_name(found)
    assert options["lr"].reads == ["train.py:11"] and options["dead"].never_read and "lr 0.5" in found.console


def test_hydra_is_tracked_and_an_interpolation_reads_its_target(tmp_path: Path) -> None:
    pytest.importorskip("hydra")
    (tmp_path / "conf.yaml").write_text("base: 0.1\nrate: ${base}\ndead: 3\noptim:\n  lr: 0.2\n")
    found = run(tmp_path, HYDRA, {"omegaconf:base": 0.5})
    options = by_name(found)
    assert options["base"].reads and options["optim.lr"].reads and options["dead"].never_read
    assert "lr 0.2 0.5" in found.console


def test_absl_flags_are_tracked(tmp_path: Path) -> None:
    pytest.importorskip("absl")
    found = run(tmp_path, ABSL, {"absl:lr": 0.5})
    options = by_name(found)
    assert options["lr"].reads == ["train.py:5"] and options["dead"].never_read and "lr 0.5" in found.console


def test_a_write_outside_the_copy_is_stopped(tmp_path: Path) -> None:
    folder, outside = tmp_path / "work", tmp_path / "outside.txt"
    folder.mkdir()
    found = run(folder, f"open({str(outside)!r}, 'w').write('x')")
    assert found.outside == str(outside) and not outside.exists()


def test_a_script_that_fails_by_itself(tmp_path: Path) -> None:
    found = run(tmp_path, "raise ValueError('own')")
    assert found.failed and found.last_error() == "ValueError: own"
