"""Every command, YAML block and value of the five guides resolves, or is refused with the option to use instead.

Each file in ``guides/`` holds the arguments and values of one guide. An item has a ``heading`` of the guide and:

- ``train``: arguments of the training script, which ``powerband train RECIPE`` replaces. ``ranks`` sets the number of
  ranks in the environment, and ``env`` sets further environment variables;
- ``yaml``: a block, which ``--config`` reads; ``files``: path -> content of other files that the arguments name;
- ``eval``: arguments of ``powerband eval``; ``run``: the run folder that these arguments name;
- ``command``: a command of powerband that replaces a script of the guide; ``file``: a file of a run folder.

``tools`` are commands of the machine, such as nvidia-smi, which work as they are.

``expect`` lists the settings that the item sets. ``status`` is works (the default), notice (the text ``notice`` is in a
message for the user) or refused (the text ``instead`` is in the error).
"""

from __future__ import annotations

import json
import shlex
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
import yaml

import runs
from powerband.cli import main as cli
from powerband.cli.catalogue import configure, load
from powerband.cli.run_commands import configure_evaluation
from powerband.core.config.saved import to_json
from powerband.core.errors import ConfigError
from powerband.core.machine import device
from powerband.core.ranks import launch
from powerband.core.run.checkpoints.manifest import Manifest

HERE = Path(__file__).parent / "guides"
MOST_REFUSALS = 8
GPUS = 4
"""GPUs of the machine on which the items resolve."""
NOT_YET: set[tuple[str, int]] = set()
"""(recipe, number of the item) of the items that still fail."""


def items() -> list[Any]:
    found = []
    for path in sorted(HERE.glob("*.yaml")):
        guide = yaml.safe_load(path.read_text(encoding="utf-8"))
        for number, item in enumerate(guide["items"]):
            recipe = item["recipe"] = guide["recipe"]
            marks = [pytest.mark.xfail(strict=True)] if (recipe, number) in NOT_YET else []
            found.append(pytest.param(item, id=f"{recipe}-{number}", marks=marks))
    return found


def make_run(recipe: str, folder: Path, steps: list[int], best: int | None = None) -> None:
    """Creates a run folder as far as the command line reads it: facts, configuration and checkpoints."""
    for step in steps:
        checkpoint = folder / "checkpoints" / str(step)
        (checkpoint / "ema").mkdir(parents=True)
        (checkpoint / "ema" / "model.safetensors").write_bytes(b"")
        (checkpoint / "manifest.json").write_bytes(Manifest("", step, 1, {}, {}).to_json())
    (folder / "checkpoints" / "last").write_text(f"{steps[-1]}\n")
    if best is not None:
        counters = {"grad_steps": 0, "time_s": 1.0}
        lines = [{"env_steps": step, **counters, "eval/success": 1.0 if step == best else 0.5} for step in steps]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "run.json").write_text(json.dumps({"recipe": recipe}))
    config = configure(recipe, ["algo=ddpg"] if recipe == "snakes" else [])[2].config
    (folder / "config.json").write_text(to_json(config))


def resolved(item: dict[str, Any]) -> tuple[Any, str]:
    """Returns (object whose attributes `expect` names, notices) of an item with `train`, `yaml` or `eval`."""
    if "eval" in item:
        call = configure_evaluation(shlex.split(item["eval"]))
        assert call is not None
        return Namespace(options=call.options, checkpoint=str(call.folder)), " ".join(call.notices)
    arguments = shlex.split(item.get("train", ""))
    stage = arguments[:1] if arguments and "=" not in arguments[0] and not arguments[0].startswith("-") else []
    arguments = arguments[len(stage) :]
    if "yaml" in item:
        Path("block.yaml").write_text(item["yaml"], encoding="utf-8")
        arguments += ["--config", "block.yaml"]
    recipe, chosen, result = configure(item["recipe"], [*stage, *arguments])
    recipe.check_sizes(result.config, launch.world_size(result.config.run))
    return Namespace(result.config, stage=chosen), " ".join(result.notices)


class Namespace:
    """The settings of a configuration, and further values."""

    def __init__(self, config: Any = None, **values: Any) -> None:
        vars(self).update(vars(config) if config is not None else {}, **values)


@pytest.mark.parametrize("item", items())
def test_an_item_of_a_guide(item: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if "command" in item:
        assert item["command"] in cli.COMMANDS
        return
    if "file" in item:
        return  # test_a_run_writes_the_files_of_the_guides checks them
    folder = tmp_path / "scripts"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setattr(device, "_gpu_count", lambda: GPUS)
    for name, content in item.get("files", {}).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    if "run" in item:
        run = item["run"]
        make_run(item["recipe"], folder / run["folder"], run["steps"], run.get("best"))
    for name, value in item.get("env", {}).items():
        monkeypatch.setenv(name, value)
    if "ranks" in item:
        monkeypatch.setenv("RANK", "0")
        monkeypatch.setenv("WORLD_SIZE", str(item["ranks"]))
    status = item.get("status", "works")
    if status == "refused":
        with pytest.raises(ConfigError, match=item["instead"]):
            resolved(item)
        return
    found, notices = resolved(item)
    for path, value in item.get("expect", {}).items():
        assert attrgetter(path)(found) == value or str(attrgetter(path)(found)).endswith(f"/{value}"), path
    assert (status == "notice") == bool(notices), notices
    assert item.get("notice", "") in notices


def test_a_run_writes_the_files_of_the_guides(tmp_path: Path) -> None:
    run = tmp_path / "run"
    arguments = [*runs.SMALL["ddpg"], "gpus=none", "threads=1", "env_steps=60", f"run_dir={run}"]
    assert cli.main(["train", *arguments]) == 0
    written = [path.name for path in run.iterdir()]
    assert "train.log" in written and any(name.startswith("events.out.tfevents") for name in written)


def test_refusals_are_few() -> None:
    refused = [param for param in items() if param.values[0].get("status") == "refused"]
    assert len(refused) <= MOST_REFUSALS


@pytest.mark.parametrize("name", sorted(path.stem for path in HERE.glob("*.yaml")))
def test_a_file_of_items_names_its_recipe_and_guide(name: str) -> None:
    guide = yaml.safe_load((HERE / f"{name}.yaml").read_text(encoding="utf-8"))
    assert guide["recipe"] == load(name).name and guide["guide"].endswith(".zh.md")
    headings = [item["heading"] for item in guide["items"]]
    assert len(headings) == len(set(headings))
    assert {shlex.split(line)[0] for line in guide["tools"]} <= {"nvidia-smi", "watch", "docker", "chmod"}


@pytest.mark.parametrize(
    ("words", "algo"),
    [
        (["update_interval=10", "algo=ppo"], "ppo"),
        (["update_interval=10", "variant=guide"], "ddpg"),
        (["a_lr=1e-3", "algo=bicnet"], "bicnet"),
        (["off_policy.update_interval=10"], "ppo"),
    ],
)
def test_an_algorithm_that_the_user_names_is_not_replaced(words: list[str], algo: str) -> None:
    config = configure("snakes", words)[2]
    assert config.config.algo == algo
    assert not any("implies" in notice for notice in config.notices)
