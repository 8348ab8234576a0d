"""Two gloo ranks learn an RDT with AdamW's moments in shards (DeepSpeed ZeRO) as one rank does that has them whole."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

pytest.importorskip("diffusers")
pytest.importorskip("accelerate")
pytest.importorskip("deepspeed", reason="pip install 'powerband[deepspeed]'")

import runs
from distributed.ranks import on_ranks
from distributed.sharded import PARTS, assert_resumes, assert_same, learned
from distributed.test_rdt_ranks import learner_of
from powerband.algos.rdt import RDTLearner
from powerband.core.distributed import Ranks
from powerband.core.precision import Precision
from powerband.core.zero import launched_adam

ZERO = {"ACCELERATE_USE_DEEPSPEED": "true", "CUDA_VISIBLE_DEVICES": ""}
"""What the launcher's words say to a process, and that CPU ranks stay on CPUs where there are GPUs too."""


def moments(learner: RDTLearner) -> int:
    """How many weights this rank has the moments of."""
    return sum(of["exp_avg"].numel() for of in learner.adam.state_dict().values())


def in_shards(ranks: Ranks, stage: int) -> dict:
    os.environ.update(ZERO, ACCELERATE_DEEPSPEED_ZERO_STAGE=str(stage))
    return learned(ranks, PARTS, torch.float32, moments)


@pytest.mark.parametrize("stage", [1, 2])
def test_two_ranks_with_shards_are_one_with_whole_moments(stage: int, tmp_path: Path) -> None:
    alone = learned(Ranks(), 1, torch.float32, moments)
    shards = on_ranks(in_shards, 2, tmp_path, stage)
    whole = assert_same(shards, alone, figures=1e-5, state=1e-4)
    one = learner_of(Ranks(), 1, torch.float32)
    one.load_state_dict(shards[0]["state"])  # what ranks with shards have saved is read by one without
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
    assert_resumes(tmp_path, "--use_deepspeed --zero_stage 2", ZERO, "moments in shards on 2 rank(s)")
