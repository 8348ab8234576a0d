"""A run of two gloo ranks with weights in shards (FSDP 2) resumes exactly, and writes the usual files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

pytest.importorskip("diffusers")
pytest.importorskip("accelerate")

from safetensors.torch import load_file

from distributed.sharded import LATE, UPDATES, assert_resumes
from powerband.cli.catalogue import configure
from powerband.core.rank_context import RankContext
from powerband.core.run.checkpoints.checkpoint import load_checkpoint, resolve_resume
from powerband.recipes.libero.learners import make_evaluation_learner
from recipes.libero.demonstrations import TASKS
from recipes.libero.test_libero import losses, train
from recipes.libero.test_two_ranks import SHARDS

LAUNCH = (
    "--use_fsdp --fsdp_version 2 "
    "--fsdp_auto_wrap_policy TRANSFORMER_BASED_WRAP --fsdp_transformer_layer_cls_to_wrap RDTBlock"
)
"""Options of `accelerate launch` on the page docs/recipes/libero.md."""


@pytest.mark.slow
def test_a_run_with_sharded_weights_resumes_exactly_and_writes_the_usual_files(tmp_path: Path) -> None:
    run, options = assert_resumes(tmp_path, LAUNCH, SHARDS, "in shards on 2 rank(s)")
    single_rank_run = train(tmp_path / "alone", tmp_path / "demos", f"updates={UPDATES}", LATE)
    assert losses(run) == pytest.approx(losses(single_rank_run), rel=1e-4), "one rank learns the joint batch of two"
    config = configure("libero", options)[2].config
    learner, _ = make_evaluation_learner(config, list(TASKS.values()), tmp_path, RankContext.single())
    learner.load_state_dict(load_checkpoint(resolve_resume(str(run))[0], "shared")[0]["learner"])
    exported = load_file(run / "policy" / "model.safetensors")
    assert exported.keys() == learner.policy_state().keys()
    assert all(torch.equal(value, exported[name]) for name, value in learner.policy_state().items())
