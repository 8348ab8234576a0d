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
from recipes.libero.test_rdt_ranks import BATCH, ROWS, learner_of, recorded

UPDATES, PARTS = 4, 2
LAUNCH = "--num_processes 2 --num_machines 1 --mixed_precision no --dynamo_backend no"
"""Of `accelerate launch`, in front of the words of the page of libero."""
LATE = "log_interval_s=1000"
"""What is added up since the last log line is part of the state: a busy machine logs at another update."""
SIZES = "2 rows x 2 rank(s) x 1 part(s) accumulated = 4"
"""What every launcher's ranks say of the batch of variant=smoke."""
FIGURES = ("losses/rdt", "losses/grad_norm")


def learned(
    ranks: Ranks, gradient_accumulation_steps: int, dtype: torch.dtype, held: Callable[[RDTLearner], int]
) -> dict:
    """Figures of all updates, the share of all weights of which this rank has what is `held`, and the whole state."""
    learner = learner_of(ranks, gradient_accumulation_steps, dtype)
    feed = BatchLoader(ROWS, BATCH // ranks.world_size, recorded, "cpu", 0, ranks.rank, ranks.world_size)
    figures = [learner.update(feed.next()) for _ in range(UPDATES)]
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


def assert_resumes(folder: Path, launch: str, environment: dict[str, str], said: str) -> tuple[Path, list[str]]:
    """A run under `accelerate launch`, and the same resumed from its middle by ranks with the variables `environment`,
    end in the same state. Returns the run and its words."""
    run, again = folder / "run", folder / "again"
    words = ["variant=smoke", *runs.COMMON, f"demos_dir={record(folder / 'demos')}", f"run_dir={run}"]
    words += [f"updates={UPDATES}", "save_interval=8", "keep_checkpoints=3", LATE]
    launcher = ["accelerate.commands.launch", *LAUNCH.split(), *launch.split(), "-m", "powerband"]
    heard = launched([*launcher, "train", "libero", *words])
    assert said in heard and SIZES in heard

    shutil.copytree(run, again)
    words_again = ["train", "libero", f"resume={again / 'checkpoints' / '8'}", "nproc=2"]
    command = CommandOnRanks(words_again, folder / "printed", **environment)
    assert command.finish() == [0, 0], command.errors()
    heard = command.printed()
    assert said in heard and SIZES in heard and " 2 updates" in heard
    assert runs.state(run)["shared/learner/updates"] == UPDATES
    assert runs.differences(run, again) == []
    return run, words


def launched(module: list[str]) -> str:
    """What a module with these words printed, which has to end well."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", *module]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
