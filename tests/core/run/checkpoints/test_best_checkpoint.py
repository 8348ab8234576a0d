"""The best checkpoint of a run is the stored one with the highest score of the evaluations up to its step."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

from powerband.core.run.checkpoints.best_checkpoint import best_checkpoint


def test_the_best_of_the_stored_checkpoints_is_found_in_a_damaged_metrics_file(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    (tmp_path / "config.json").write_text("{}")
    assert best_checkpoint(str(tmp_path), "success")[0] is None
    for step in (9, 100, 200):
        (tmp_path / "checkpoints" / str(step)).mkdir(parents=True)
    values = {50: 1.0, 90: 0.8, 150: 0.3, 250: 2.0}
    counters = {"grad_steps": 1, "time_s": 2.0}
    lines = [json.dumps({"env_steps": step, **counters, "eval/success": value}) for step, value in values.items()]
    lines += ["{cut", "[1]", json.dumps({"env_steps": 95, **counters, "eval/success": float("nan")})]
    lines += [json.dumps({"env_steps": 96, **counters}), json.dumps({"env_steps": math.inf, "eval/success": 1.0})]
    (tmp_path / "checkpoints" / "²").mkdir()
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
    found, reason = best_checkpoint(str(tmp_path), "success")
    assert found == tmp_path / "checkpoints" / "100" and "success 0.8" in reason, "0.8 is the last one before step 100"
    assert best_checkpoint(str(tmp_path), "")[0] is None
    (tmp_path / "metrics.jsonl").unlink()
    os.mkfifo(tmp_path / "metrics.jsonl")
    assert best_checkpoint(str(tmp_path), "success")[0] is None, "a pipe is not opened"
