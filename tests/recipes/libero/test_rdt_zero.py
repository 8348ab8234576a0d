"""Two gloo ranks learn an RDT with AdamW's moments in shards (DeepSpeed ZeRO) as one rank does that has them whole."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

pytest.importorskip("diffusers")
pytest.importorskip("accelerate")
pytest.importorskip("deepspeed", reason="pip install 'powerband[deepspeed]'")

from accelerate.state import AcceleratorState

import runs
from distributed.ranks import on_ranks
from distributed.sharded import PARTS, assert_resumes, assert_same, learned
from powerband.core.optim.deepspeed import STAGES, adam_for_launcher
from powerband.core.optim.precision import Precision
from powerband.core.ranks.ranks import Ranks
from powerband.recipes.libero.rdt import RDTLearner
from recipes.libero.test_rdt_ranks import learner_of

ZERO = {"ACCELERATE_USE_DEEPSPEED": "true", "CUDA_VISIBLE_DEVICES": ""}
"""What the launcher's words say to a process, and that CPU ranks stay on CPUs where there are GPUs too."""


def moments(learner: RDTLearner) -> int:
    """How many weights this rank has the moments of."""
    return sum(of["exp_avg"].numel() for of in learner.adam.state_dict().values())


def in_shards(ranks: Ranks) -> dict:
    """What one start of two ranks learns at each stage, and one update in bfloat16: DeepSpeed takes long to import."""
    os.environ.update(ZERO)
    found = {"bf16": stepped_in_bf16(ranks)}
    for stage in STAGES:
        os.environ["ACCELERATE_DEEPSPEED_ZERO_STAGE"] = str(stage)
        AcceleratorState._reset_state(True)

        def held(learner: RDTLearner, stage: int = stage) -> int:
            assert learner.adam.prepared.zero_optimization_stage() == stage
            return moments(learner)

        found[str(stage)] = learned(ranks, PARTS, torch.float32, held)
    return found


def stepped_in_bf16(ranks: Ranks) -> dict:
    adam = adam_for_launcher(torch.nn.Linear(4, 4), 1e-3, ranks=ranks, precision=Precision("bf16", "cpu"))
    made, before = adam.forward(torch.ones(2, 4)), adam.net.weight.detach().clone()
    with torch.autocast("cpu", torch.bfloat16):  # which DeepSpeed may turn off
        inside = adam.forward(torch.ones(2, 4))
    adam.step(made.float().square().sum() + 0 * inside.float().sum())
    narrow = torch.tensor([each.dtype == torch.bfloat16 for each in (made, inside)])
    return {"narrow": narrow, "weight": adam.net.weight.detach().clone(), "before": before}


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    return on_ranks(in_shards, 2, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("stage", STAGES)
def test_two_ranks_with_shards_are_one_with_whole_moments(stage: int, two_ranks: list[dict]) -> None:
    alone = learned(Ranks(), 1, torch.float32, moments)
    shards = [each[str(stage)] for each in two_ranks]
    whole = assert_same(shards, alone, figures=1e-5, state=1e-4)
    one = learner_of(Ranks(), 1, torch.float32)
    one.load_state_dict(shards[0]["state"])  # what ranks with shards have saved is read by one without
    for name, leaf in runs.leaves(one.state_dict()):
        assert name not in whole or torch.equal(torch.as_tensor(leaf), torch.as_tensor(whole[name])), name


def test_products_are_of_the_precision_that_was_asked_for_and_weights_stay_float32(two_ranks: list[dict]) -> None:
    first, second = (each["bf16"] for each in two_ranks)
    assert first["narrow"].all() and first["weight"].dtype == torch.float32
    assert torch.equal(first["weight"], second["weight"]) and not torch.equal(first["weight"], first["before"])


def test_a_run_in_shards_goes_on_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    assert_resumes(tmp_path, "--use_deepspeed --zero_stage 2", ZERO, "moments in shards on 2 rank(s)")
