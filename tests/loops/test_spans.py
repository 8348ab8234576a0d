"""Spans: each expensive operation belongs to its account, not to `other`."""

from __future__ import annotations

import runs
from powerband.core.run import run as running


def test_the_check_before_a_checkpoint_belongs_to_saving(tmp_path, monkeypatch):
    original, within = running.end_if_not_finite, []

    def watched(run, inspect=False):
        if inspect:
            within.append([name for name, span in run.clock.spans.items() if span in run.clock.stack])
        original(run, inspect)

    monkeypatch.setattr(running, "end_if_not_finite", watched)
    runs.train("sac", tmp_path / "run", "env_steps=60", "save_interval=20")
    assert within == [["save"]] * 3
