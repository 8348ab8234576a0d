"""Two gloo ranks learn an RDT with AdamW's moments in shards (DeepSpeed ZeRO) as one rank does that has them whole."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("diffusers")
pytest.importorskip("accelerate")
pytest.importorskip("deepspeed", reason="pip install 'powerband[deepspeed]'")

import runs
from distributed.ranks import on_ranks
from distributed.test_rdt_ranks import BATCH, ROWS, learner_of, recorded
from powerband.core.distributed import Ranks
from powerband.core.precision import Precision
from powerband.core.zero import launched_adam
from powerband.data.feed import Feed
from recipes.test_libero import record

UPDATES, PARTS = 4, 2
LAUNCH = "--num_processes 2 --num_machines 1 --mixed_precision no --dynamo_backend no --use_deepspeed --zero_stage 2"
"""As on the page of libero."""
ZERO = {"ACCELERATE_USE_DEEPSPEED": "true", "CUDA_VISIBLE_DEVICES": ""}
"""What that says to a process, and that CPU ranks stay on CPUs where there are GPUs too."""


def learned(ranks: Ranks, accumulation: int = 1) -> dict:
    """Figures of all updates, the share of the moments that this rank holds, and the whole state in the end."""
    learner = learner_of(ranks, accumulation, torch.float32)
    feed = Feed(ROWS, BATCH // ranks.world_size, recorded, "cpu", 0, ranks.rank, ranks.world_size)
    figures = [learner.update(feed.next()) for _ in range(UPDATES)]
    mine = sum(of["exp_avg"].numel() for of in learner.adam.state_dict().values())
    total = sum(weight.numel() for weight in learner.policy.parameters())
    learner.gather()
    found = {"state": learner.state_dict(), "share": torch.tensor(mine / total)}
    return found | {name: torch.stack([each[name] for each in figures]) for name in ("losses/rdt", "losses/grad_norm")}


def in_shards(ranks: Ranks, stage: int) -> dict:
    os.environ.update(ZERO, ACCELERATE_DEEPSPEED_ZERO_STAGE=str(stage))
    return learned(ranks, PARTS)


@pytest.mark.parametrize("stage", [1, 2])
def test_two_ranks_with_shards_are_one_with_whole_moments(stage: int, tmp_path: Path) -> None:
    alone = learned(Ranks())
    first, second = on_ranks(in_shards, 2, tmp_path, stage)
    assert 0.45 < first["share"] < 0.55 and float(first["share"] + second["share"]) == pytest.approx(1, abs=0.01)
    losses = (first["losses/rdt"] + second["losses/rdt"]) / 2
    torch.testing.assert_close(losses, alone["losses/rdt"], rtol=1e-5, atol=1e-6)
    for rank in (first, second):
        torch.testing.assert_close(rank["losses/grad_norm"], alone["losses/grad_norm"], rtol=1e-5, atol=1e-6)
    whole, expected = (
        {name: leaf for name, leaf in runs.leaves(of["state"]) if not name.startswith("/noise")}
        for of in (first, alone)
    )
    assert whole.keys() == expected.keys()
    for name, leaf in whole.items():  # weights, averaged weights and moments
        torch.testing.assert_close(leaf, expected[name], rtol=1e-4, atol=1e-5, msg=name)
    one = learner_of(Ranks(), 1, torch.float32)
    one.load_state_dict(first["state"])  # what ranks with shards have saved is read by one without
    for name, leaf in runs.leaves(one.state_dict()):
        assert name not in whole or torch.equal(torch.as_tensor(leaf), torch.as_tensor(whole[name])), name


def stepped_in_bf16(ranks: Ranks) -> dict:
    os.environ.update(ZERO)
    adam = launched_adam(torch.nn.Linear(4, 4), 1e-3, ranks=ranks, precision=Precision("bf16", "cpu"))
    made, before = adam.forward(torch.ones(2, 4)), adam.net.weight.detach().clone()
    with torch.autocast("cpu", torch.bfloat16):  # which DeepSpeed may turn off
        inside = adam.forward(torch.ones(2, 4))
    adam.step(made.float().square().sum() + 0 * inside.float().sum())
    narrow = torch.tensor([each.dtype == torch.bfloat16 for each in (made, inside)])
    return {"narrow": narrow, "weight": adam.net.weight.detach().clone(), "before": before}


def test_products_are_of_the_precision_that_was_asked_for_and_weights_stay_float32(tmp_path: Path) -> None:
    first, second = on_ranks(stepped_in_bf16, 2, tmp_path)
    assert first["narrow"].all() and first["weight"].dtype == torch.float32
    assert torch.equal(first["weight"], second["weight"]) and not torch.equal(first["weight"], first["before"])


def test_a_run_in_shards_goes_on_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    run, again = tmp_path / "run", tmp_path / "again"
    words = ["libero", "variant=smoke", *runs.COMMON, f"demos_dir={record(tmp_path / 'demos')}", f"run_dir={run}"]
    words += ["updates=4", "save_interval=8", "keep_checkpoints=3"]
    start = [sys.executable, "-m", "accelerate.commands.launch", *LAUNCH.split(), "-m", "powerband", "train", *words]
    said = subprocess.run(start, env=environment, capture_output=True, text=True, timeout=240)
    assert said.returncode == 0, said.stdout + said.stderr
    assert "moments in shards on 2 rank(s)" in said.stdout

    shutil.copytree(run, again)
    own = [sys.executable, "-m", "powerband", "train", "libero", f"resume={again / 'checkpoints' / '8'}", "nproc=2"]
    said = subprocess.run(own, env=environment | ZERO, capture_output=True, text=True, timeout=240)
    assert said.returncode == 0, said.stdout + said.stderr
    assert "moments in shards on 2 rank(s)" in said.stdout and "2 grad steps" in said.stdout
    assert runs.state(run)["shared/learner/updates"] == UPDATES
    assert runs.differences(run, again) == []
