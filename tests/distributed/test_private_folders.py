"""Ranks whose machines do not see one folder, and ranks that do not divide the sizes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import runs
from distributed.ranks import CommandOnRanks

MACHINES = {"LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "0"}
"""Variables of ranks that are each alone on their machine."""
LATE = "log_interval_s=1000"
"""Unfinished figures are part of the state, and a busy machine logs at another step."""


def train(printed: Path, *own: list[str], arguments: str = "") -> CommandOnRanks:
    """Trains on one rank per list of arguments. All ranks must end with status 0."""
    command = CommandOnRanks(["train", *arguments.split()], printed, own=own, **MACHINES)
    assert command.finish() == [0] * len(own), command.printed() + command.errors()
    return command


def manifest(run: Path, step: int) -> bytes:
    return (run / "checkpoints" / str(step) / "manifest.json").read_bytes()


@pytest.mark.slow
def test_checkpoints_of_private_folders_are_complete_and_continue_with_the_same_bits(tmp_path):
    """On rank 0 alone, then on each machine, then after the folder of rank 0 has lost them."""
    common, a, b = (tmp_path / name for name in ("common", "a", "b"))
    new = " ".join([*runs.SMALL["cartpole"], "num_workers=0", *runs.COMMON, LATE])
    train(tmp_path / "0", *[[f"run_dir={common}"]] * 2, arguments=f"{new} env_steps=192")
    command = train(tmp_path / "1", [f"run_dir={a}"], [f"run_dir={b}"], arguments=f"{new} env_steps=64")
    output = [" ".join(text.split()) for text in (command.printed(), command.errors())]  # the banner has several lines
    for text in output:  # rank 1 is on another console
        assert f":{a}; only stacks and error files of the other machines: " in text and f":{b}" in text, text
    assert {path.name for path in (a / "checkpoints").iterdir()} == {"64", "last"}
    assert (
        not any((b / "checkpoints").glob("*")) and str(a) in json.loads((b / "run.json").read_text())["checkpoints_in"]
    )

    resumed = "gym " + LATE
    train(tmp_path / "2", [f"resume={a}"], [f"resume={b}"], arguments=f"{resumed} env_steps=128 storage=local")
    for step in (64, 128):
        assert manifest(a, step) == manifest(b, step)
    shutil.rmtree(a / "checkpoints" / "128")
    output = train(tmp_path / "3", [f"resume={a}"], [f"resume={b}"], arguments=f"{resumed} env_steps=192").printed()
    assert f"resumed from {b}/checkpoints/128 at 128 env steps" in output, "rank 0 is where the newest checkpoint is"
    assert manifest(a, 192) == manifest(b, 192)
    assert runs.differences(common, a) == runs.differences(common, b) == []
    assert (
        not any(tmp_path.rglob(".saving-*")) and not any(tmp_path.rglob(".re*")) and not any(tmp_path.rglob(".rank*"))
    )


def test_a_refused_resume_changes_nothing(tmp_path):
    """The machines have folders of their own, which the run must not have, so it is refused before its first step."""
    a, b = tmp_path / "a", tmp_path / "b"
    new = " ".join([*runs.SMALL["cartpole"], "num_workers=0", *runs.COMMON, LATE, "env_steps=64"])
    train(tmp_path / "0", [f"run_dir={a}"], [f"run_dir={b}"], arguments=new)
    before = {path: path.read_bytes() for path in sorted(tmp_path.glob("[ab]/**/*")) if path.is_file()}
    arguments = ["train", "gym", "env_steps=128", "storage=shared"]
    command = CommandOnRanks(arguments, tmp_path / "1", own=([f"resume={a}"], [f"resume={b}"]), **MACHINES)
    assert command.finish() == [2, 2] and "is not the same folder as" in command.errors()
    assert before == {path: path.read_bytes() for path in sorted(tmp_path.glob("[ab]/**/*")) if path.is_file()}


def test_a_machine_without_a_folder_takes_that_of_rank_0(tmp_path):
    run = tmp_path / "run"
    arguments = " ".join([*runs.SMALL["cartpole"], "num_workers=0", *runs.COMMON, LATE, "env_steps=64"])
    train(tmp_path / "0", [f"run_dir={run}"], [], arguments=arguments)
    assert (run / "checkpoints" / "64" / "rank1.json").exists()
    train(tmp_path / "1", [f"resume={run}"], [], arguments=f"gym {LATE} env_steps=128")
    assert (run / "checkpoints" / "128" / "rank1.json").exists()
    assert not Path(".lock").exists() and not Path("run.json").exists()


def test_two_ranks_with_evaluations_in_a_process_end_together(tmp_path):
    """The last checkpoint is written at the last step, where rank 0 alone knows that it is already evaluated."""
    run = tmp_path / "run"
    arguments = f"{' '.join(runs.SMALL['cartpole'])} num_workers=0 {' '.join(runs.COMMON)} {LATE} env_steps=512"
    arguments += f" eval_process=on eval_share=0.5 eval_episodes=2 save_interval=512 run_dir={run}"
    output = train(tmp_path / "0", [], [], arguments=arguments).printed()
    assert "evaluation of step" in output, output


def test_a_private_folder_with_another_run_is_refused_on_all_machines(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "run.json").write_text('{"id": "other"}')
    arguments = ["train", *runs.SMALL["cartpole"], "num_workers=0", *runs.COMMON]
    own = [f"run_dir={tmp_path / 'a'}"], [f"run_dir={tmp_path / 'b'}"]
    command = CommandOnRanks(arguments, tmp_path / "printed", own=own, **MACHINES)
    assert command.finish() == [2, 2]
    assert command.errors().count("already contains another run") == 2 and "Traceback" not in command.errors()
    assert not (tmp_path / "a").exists() and len(list((tmp_path / "b").iterdir())) == 1


def test_ranks_that_do_not_divide_the_sizes_wait_as_spares(tmp_path):
    run = tmp_path / "run"
    arguments = " ".join(
        [
            *runs.SMALL["cartpole"],
            *runs.COMMON,
            "num_workers=0 env_steps=64",
            f"run_dir={run} nnodes=1:3 rdzv_endpoint=a:1",
        ]
    )
    output = train(tmp_path / "printed", [], [], [], arguments=arguments).printed()
    assert (
        "2 of 3 ranks work, because the sizes do not divide by more. Spares until a rank is lost: process 2 on"
        in output
    )
    assert "4 over 2 rank(s) = 2 each" in output
    assert not any(name.startswith("rank2/") for name in runs.state(run))
