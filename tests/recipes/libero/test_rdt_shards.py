"""Two gloo ranks learn an RDT whose weights lie in shards (FSDP 2) as one rank does that has them whole, in float64."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

pytest.importorskip("diffusers")
pytest.importorskip("accelerate")

from safetensors.torch import load_file
from torch.distributed.tensor import DTensor

from distributed.ranks import on_ranks
from distributed.sharded import LATE, PARTS, UPDATES, assert_resumes, assert_same, learned
from powerband.cli.catalogue import configure
from powerband.core.ranks.ranks import Ranks
from powerband.core.run.checkpoint import load_checkpoint, resolve_resume
from powerband.recipes.libero.learners import make_evaluation_learner
from powerband.recipes.libero.rdt import RDTLearner
from recipes.libero.test_libero import TOLD, losses, train

LAUNCH = (
    "--use_fsdp --fsdp_version 2 "
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


def weights(learner: RDTLearner) -> int:
    """How many weights lie on this rank."""
    local = (each.to_local() if isinstance(each, DTensor) else each for each in learner.policy.parameters())
    return sum(each.numel() for each in local)


def in_shards(ranks: Ranks) -> dict:
    os.environ.update(SHARDS)
    return learned(ranks, PARTS, torch.float64, weights)


def test_two_ranks_with_shards_are_one_with_whole_weights(tmp_path: Path) -> None:
    alone = learned(Ranks(), 1, torch.float64, weights)
    assert_same(on_ranks(in_shards, 2, tmp_path), alone, figures=1e-6, state=1e-6)


def test_a_run_in_shards_goes_on_as_if_it_had_not_stopped_and_is_read_as_any_other(tmp_path: Path) -> None:
    run, words = assert_resumes(tmp_path, LAUNCH, SHARDS, "in shards on 2 rank(s)")
    alone = train(tmp_path / "alone", tmp_path / "demos", f"updates={UPDATES}", LATE)
    assert losses(run) == pytest.approx(losses(alone), rel=1e-4), "one rank learns the joint batch of two"
    config = configure("libero", words)[2].config
    learner, _ = make_evaluation_learner(config, list(TOLD.values()), tmp_path)
    learner.load_state_dict(load_checkpoint(resolve_resume(str(run))[0], "shared")[0]["learner"])
    exported = load_file(run / "policy" / "model.safetensors")
    assert exported.keys() == learner.policy_state().keys()
    assert all(torch.equal(leaf, exported[name]) for name, leaf in learner.policy_state().items())
