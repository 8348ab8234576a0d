"""Two gloo ranks learn an RDT whose weights lie in shards (FSDP 2) as one rank does that has them whole, in float64."""

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

from safetensors.torch import load_file
from torch.distributed.tensor import DTensor

import runs
from distributed.ranks import on_ranks
from distributed.test_rdt_ranks import BATCH, ROWS, learner_of, recorded
from powerband.catalogue import configure
from powerband.core.checkpoint import load_checkpoint, resolve_resume
from powerband.core.distributed import Ranks
from powerband.data.feed import Feed
from powerband.recipes.libero_learn import for_evaluation
from recipes.test_libero import TOLD, record

UPDATES, PARTS = 4, 2
LAUNCH = (
    "--num_processes 2 --num_machines 1 --mixed_precision no --dynamo_backend no --use_fsdp --fsdp_version 2 "
    "--fsdp_auto_wrap_policy TRANSFORMER_BASED_WRAP --fsdp_transformer_layer_cls_to_wrap Block"
)
"""As on the page of libero."""
SHARDS = {
    "ACCELERATE_USE_FSDP": "true",
    "FSDP_VERSION": "2",
    "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
    "FSDP_TRANSFORMER_CLS_TO_WRAP": "Block",
    "CUDA_VISIBLE_DEVICES": "",
}
"""What that says to a process, and that shards of CPU ranks are to lie on CPUs where there are GPUs too."""


def learned(ranks: Ranks, accumulation: int = 1) -> dict:
    """Figures of all updates, the share of the weights that this rank holds, and the whole state in the end."""
    learner = learner_of(ranks, accumulation)
    feed = Feed(ROWS, BATCH // ranks.world_size, recorded, "cpu", 0, ranks.rank, ranks.world_size)
    figures = [learner.update(feed.next()) for _ in range(UPDATES)]
    weights = list(learner.policy.parameters())
    mine = sum((weight.to_local() if isinstance(weight, DTensor) else weight).numel() for weight in weights)
    learner.gather()
    found = {"state": learner.state_dict(), "share": torch.tensor(mine / sum(weight.numel() for weight in weights))}
    return found | {name: torch.stack([each[name] for each in figures]) for name in ("losses/rdt", "losses/grad_norm")}


def in_shards(ranks: Ranks, accumulation: int) -> dict:
    os.environ.update(SHARDS)
    return learned(ranks, accumulation)


def test_two_ranks_with_shards_are_one_with_whole_weights(tmp_path: Path) -> None:
    alone = learned(Ranks())
    first, second = on_ranks(in_shards, 2, tmp_path, PARTS)
    assert 0.45 < first["share"] < 0.55 and float(first["share"] + second["share"]) == pytest.approx(1)
    losses = (first["losses/rdt"] + second["losses/rdt"]) / 2
    torch.testing.assert_close(losses, alone["losses/rdt"], rtol=1e-6, atol=1e-9)
    for rank in (first, second):
        torch.testing.assert_close(rank["losses/grad_norm"], alone["losses/grad_norm"], rtol=1e-6, atol=1e-9)
    whole, expected = (
        {name: leaf for name, leaf in runs.leaves(of["state"]) if not name.startswith("/noise")}
        for of in (first, alone)
    )
    assert whole.keys() == expected.keys()
    for name, leaf in whole.items():  # weights, averaged weights and moments
        torch.testing.assert_close(leaf, expected[name], rtol=1e-6, atol=1e-6, msg=name)


def test_a_run_in_shards_goes_on_as_if_it_had_not_stopped_and_is_read_as_any_other(tmp_path: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    run, again = tmp_path / "run", tmp_path / "again"
    words = ["libero", "variant=smoke", *runs.COMMON, f"demos_dir={record(tmp_path / 'demos')}", f"run_dir={run}"]
    words += ["updates=4", "save_interval=8", "keep_checkpoints=3"]
    start = [sys.executable, "-m", "accelerate.commands.launch", *LAUNCH.split(), "-m", "powerband", "train", *words]
    said = subprocess.run(start, env=environment, capture_output=True, text=True, timeout=150)
    assert said.returncode == 0, said.stdout + said.stderr
    assert "in shards on 2 rank(s)" in said.stdout

    shutil.copytree(run, again)
    own = [sys.executable, "-m", "powerband", "train", "libero", f"resume={again / 'checkpoints' / '8'}", "nproc=2"]
    said = subprocess.run(own, env=environment | SHARDS, capture_output=True, text=True, timeout=150)
    assert said.returncode == 0, said.stdout + said.stderr
    assert "in shards on 2 rank(s)" in said.stdout and "2 grad steps" in said.stdout
    assert runs.state(run)["shared/learner/updates"] == UPDATES
    assert runs.differences(run, again) == []

    config = configure("libero", words[1:])[2].config
    learner, _ = for_evaluation(config, list(TOLD.values()), tmp_path)
    learner.load_state_dict(load_checkpoint(resolve_resume(str(run))[0], "shared")[0]["learner"])
    exported = load_file(run / "policy" / "model.safetensors")
    assert exported.keys() == learner.policy_state().keys()
    assert all(torch.equal(leaf, exported[name]) for name, leaf in learner.policy_state().items())
