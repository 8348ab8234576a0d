"""What shards of weights (FSDP 2) and of moments (DeepSpeed) have to show alike: the run of one rank that has all."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

import runs
from distributed.ranks import CommandOnRanks
from powerband.core.ranks.ranks import Ranks
from powerband.data.recorded.batch_loader import BatchLoader
from powerband.recipes.libero.rdt import RDTLearner
from recipes.libero.test_libero import record
from recipes.libero.test_rdt_ranks import BATCH, ROWS, make_rank_learner, recorded_batch

UPDATES, PARTS = 4, 2
LAUNCH = "--num_processes 2 --num_machines 1 --mixed_precision no --dynamo_backend no"
"""Arguments of `accelerate launch`, before the command of powerband."""
LATE = "log_interval_s=1000"
"""No log line before the end. The state contains the sums since the last line, whose time depends on the machine."""
SIZES = "2 rows x 2 rank(s) x 1 part(s) accumulated = 4"
"""Line of the banner about the batch of variant=smoke, the same with every launcher."""
FIGURES = ("losses/rdt", "losses/grad_norm")


def learned(
    ranks: Ranks, gradient_accumulation_steps: int, dtype: torch.dtype, held: Callable[[RDTLearner], int]
) -> dict:
    """Returns the figures of all updates, the share of all weights that `held` counts on this rank, and the state."""
    learner = make_rank_learner(ranks, gradient_accumulation_steps, dtype)
    loader = BatchLoader(ROWS, BATCH // ranks.world_size, recorded_batch, "cpu", 0, ranks.rank, ranks.world_size)
    figures = [learner.update(loader.next()) for _ in range(UPDATES)]
    share = torch.tensor(held(learner) / sum(weight.numel() for weight in learner.policy.parameters()))
    learner.gather()
    found = {"state": learner.state_dict(), "share": share}
    return found | {name: torch.stack([each[name] for each in figures]) for name in FIGURES}


def assert_same(shards: list[dict], alone: dict, figures: float, state: float) -> dict[str, Tensor]:
    """Each of two ranks has half; figures, and weights, averaged weights and moments, are those of one rank to these
    tolerances. Returns the state that was compared."""
    first, second = shards
    assert 0.45 < first["share"] < 0.55 and abs(first["share"] + second["share"] - 1) < 0.01
    losses = (first["losses/rdt"] + second["losses/rdt"]) / 2
    torch.testing.assert_close(losses, alone["losses/rdt"], rtol=figures, atol=figures / 10)
    for rank in shards:
        torch.testing.assert_close(rank["losses/grad_norm"], alone["losses/grad_norm"], rtol=figures, atol=figures / 10)
    whole, expected = (
        {name: leaf for name, leaf in runs.leaves(of["state"]) if not name.startswith("/noise")}
        for of in (first, alone)
    )
    assert whole.keys() == expected.keys()
    for name, leaf in whole.items():
        torch.testing.assert_close(leaf, expected[name], rtol=state, atol=state / 10, msg=name)
    return whole


def assert_resumes(
    folder: Path, launch: str, environment: dict[str, str], expected_output: str
) -> tuple[Path, list[str]]:
    """Checks that a run under `accelerate launch` and its resume from the middle end in the same state.

    The ranks of the resume have the variables `environment`. Returns the run and its arguments.
    """
    run, again = folder / "run", folder / "again"
    arguments = ["variant=smoke", *runs.COMMON, f"demos_dir={record(folder / 'demos')}", f"run_dir={run}"]
    arguments += [f"updates={UPDATES}", "save_interval=8", "keep_checkpoints=3", LATE]
    launcher = ["accelerate.commands.launch", *LAUNCH.split(), *launch.split(), "-m", "powerband"]
    output = launched([*launcher, "train", "libero", *arguments])
    assert expected_output in output and SIZES in output

    shutil.copytree(run, again)
    resume_arguments = ["train", "libero", f"resume={again / 'checkpoints' / '8'}", "nproc=2"]
    command = CommandOnRanks(resume_arguments, folder / "printed", **environment)
    assert command.finish() == [0, 0], command.errors()
    output = command.printed()
    assert expected_output in output and SIZES in output and " 2 updates" in output
    assert runs.state(run)["shared/learner/updates"] == UPDATES
    assert runs.differences(run, again) == []
    return run, arguments


def launched(module: list[str]) -> str:
    """Runs a module with arguments, which must end with status 0, and returns its standard output."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", *module]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
