"""A run of two gloo ranks with AdamW's moments in shards (DeepSpeed ZeRO) resumes from a checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("diffusers")
pytest.importorskip("accelerate")
pytest.importorskip("deepspeed", reason="pip install 'powerband[deepspeed]'")

from distributed.sharded import assert_resumes
from recipes.libero.test_two_ranks import ZERO


@pytest.mark.slow
def test_a_run_with_sharded_moments_resumes_exactly(tmp_path: Path) -> None:
    assert_resumes(tmp_path, "--use_deepspeed --zero_stage 2", ZERO, "moments in shards on 2 rank(s)")
