"""The scripts and manifests in examples/clusters: their syntax, their schemas, and the commands that they run.

The scripts run with substitutes for srun, ssh and so on, which write down how they were called.
"""

from __future__ import annotations

import copy
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from powerband.cli import main as cli

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "clusters"
SHELL = ["torchrun.sh", "two_hosts.sh", "slurm.sbatch"]
MANIFESTS = ["pytorchjob.yaml", "jobset.yaml"]
SCHEMAS = yaml.safe_load((Path(__file__).parent / "schemas.yaml").read_text())
SUBSTITUTE = """#!/bin/bash
printf '%s\\n' "${0##*/}" "$@" > "$(mktemp "$CALLS/XXXXXX")"
[ "${0##*/}" != ssh ] || exec sh -c "$3"
exit "${STATUS:-0}"
"""
"""Writes its name and arguments into a file; ssh also runs its command here."""


def manifest(name: str) -> dict[str, Any]:
    return yaml.safe_load((FOLDER / name).read_text())


def validate(value: dict[str, Any]) -> None:
    schema = {"$defs": SCHEMAS["$defs"], **SCHEMAS[value["kind"]]}
    jsonschema.Draft202012Validator(schema).validate(value)


def containers(value: Any) -> list[dict[str, Any]]:
    """All containers of a manifest."""
    if isinstance(value, list):
        return [each for item in value for each in containers(item)]
    if not isinstance(value, dict):
        return []
    return [*value.get("containers", []), *(each for item in value.values() for each in containers(item))]


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_manifest_has_the_published_form(name: str) -> None:
    validate(manifest(name))


@pytest.mark.parametrize("name", MANIFESTS)
def test_the_schema_refuses_unknown_missing_and_mistyped_fields(name: str) -> None:
    def misspelt(value: dict, container: dict) -> None:
        container["volumeMount"] = container.pop("volumeMounts")

    def missing(value: dict, container: dict) -> None:
        del container["name"]

    def mistyped(value: dict, container: dict) -> None:
        container["resources"]["limits"]["memory"] = "128 GB"

    def unknown(value: dict, container: dict) -> None:
        value["spec"]["replicas"] = 2

    for change in (misspelt, missing, mistyped, unknown):
        value = copy.deepcopy(manifest(name))
        change(value, containers(value)[0])
        with pytest.raises(jsonschema.ValidationError):
            validate(value)


@pytest.mark.parametrize("name", MANIFESTS)
def test_pods_have_time_to_save_and_mount_what_they_declare(name: str) -> None:
    text = (FOLDER / name).read_text()
    assert "terminationGracePeriodSeconds: 150" in text
    for container in containers(manifest(name)):
        assert {each["name"] for each in container["volumeMounts"]} == {"runs", "shm"}


@pytest.mark.parametrize("name", SHELL)
def test_a_script_has_valid_syntax(name: str) -> None:
    assert subprocess.run(["bash", "-n", str(FOLDER / name)], capture_output=True).returncode == 0


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[list[str]]]:
    """Function that runs a shell command with substitutes on the PATH, and returns their calls."""
    folder, tools = tmp_path / "calls", tmp_path / "tools"
    tools.mkdir()
    for tool in ("powerband", "torchrun", "srun", "scontrol", "ssh", "getent"):
        (tools / tool).write_text(SUBSTITUTE)
        (tools / tool).chmod(0o755)
    folder.mkdir()

    def run(command: list[str], **variables: str) -> list[list[str]]:
        for file in folder.iterdir():
            file.unlink()
        path = f"{tools}{os.pathsep}{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path, "CALLS": str(folder), **variables}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == int(variables.get("STATUS", 0)), done.stderr
        return [file.read_text().splitlines() for file in folder.iterdir()]

    return run


def training(found: list[list[str]]) -> list[list[str]]:
    """The arguments after ``powerband train`` in the calls, also in those of a launcher."""
    return [call[call.index("train") + 1 :] for call in found if "train" in call and call[0] != "ssh"]


def command_of(name: str, runs: Path) -> tuple[list[str], dict[str, str], int]:
    """Command that starts an example with its run below `runs`, its variables, and the number of trainings it starts.

    The run is ``snakes``, or ``snakes-7`` under Slurm.
    """
    if name in MANIFESTS:
        container = containers(manifest(name))[0]
        script = container["args"][0].replace("/work/runs", str(runs))
        return [*container["command"], script], {"PET_NODE_RANK": "0", "JOB_COMPLETION_INDEX": "0"}, 1
    command = ["bash", str(FOLDER / name), *["node0", "node1"] * (name == "two_hosts.sh")]
    variables = {
        "torchrun.sh": {"HEAD": "node0", "RUN": str(runs / "snakes")},
        "two_hosts.sh": {"FOLDER": str(runs.parent)},
        "slurm.sbatch": {"SLURM_SUBMIT_DIR": str(runs.parent), "SLURM_JOB_ID": "7"},
    }
    return command, variables[name], 2 if name == "two_hosts.sh" else 1


@pytest.mark.parametrize("name", [*SHELL, *MANIFESTS])
def test_an_example_starts_a_run_with_valid_options_and_then_continues_it(
    name: str, calls: Callable, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    runs = tmp_path / "runs"
    runs.mkdir()
    command, variables, count = command_of(name, runs)
    run = runs / ("snakes-7" if name == "slurm.sbatch" else "snakes")
    started = training(calls(command, **variables))
    assert len(started) == count
    for words in started:
        assert f"run_dir={run}" in words
        assert cli.main(["show", *words]) == 0, words
    assert "off_policy" in capsys.readouterr().out
    (run / "checkpoints").mkdir(parents=True)
    (run / "checkpoints" / "last").write_text("100\n")
    for words in training(calls(command, **variables)):
        assert f"resume={run}" in words and not any(word.startswith("run_dir=") for word in words)


@pytest.mark.parametrize("name", ["slurm.sbatch", *MANIFESTS])
def test_a_run_that_ended_before_its_first_checkpoint_is_moved_away(name: str, calls: Callable, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    command, variables, _ = command_of(name, runs)
    run = runs / ("snakes-7" if name == "slurm.sbatch" else "snakes")
    run.mkdir(parents=True)
    (run / "run.json").write_text("{}")
    assert f"run_dir={run}" in training(calls(command, **variables))[0]
    assert not run.exists() and len(list(runs.glob(f"{run.name}-without-checkpoint-*/run.json"))) == 1
    if name in MANIFESTS:
        run.mkdir()
        calls(command, **{each: "1" for each in variables})
        assert run.exists(), "one pod alone moves the folder"


@pytest.mark.parametrize(("status", "requeued"), [(0, False), (1, False), (2, False), (138, True), (143, True)])
def test_a_preempted_slurm_job_goes_back_into_the_queue(
    status: int, requeued: bool, calls: Callable, tmp_path: Path
) -> None:
    command, variables, _ = command_of("slurm.sbatch", tmp_path / "runs")
    script = tmp_path / "tools" / "scontrol"
    script.write_text(SUBSTITUTE.replace('"${STATUS:-0}"', "0"))
    found = calls(command, **variables, STATUS=str(status))
    assert (["scontrol", "requeue", "7"] in found) == requeued
    text = (FOLDER / "slurm.sbatch").read_text()
    assert "#SBATCH --requeue\n" in text and "#SBATCH --signal=USR1@180\n" in text
