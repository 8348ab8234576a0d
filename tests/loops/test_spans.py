"""What costs time is in the span of its account: nothing large is left to `other`."""

from __future__ import annotations

import runs
from powerband.core.run import run as running


def test_what_a_checkpoint_looks_at_before_it_is_written_is_saving(tmp_path, monkeypatch):
    look, within = running.end_if_not_finite, []

    def watched(run, inspect=False):
        if inspect:
            within.append([name for name, span in run.clock.spans.items() if span in run.clock.stack])
        look(run, inspect)

    monkeypatch.setattr(running, "end_if_not_finite", watched)
    runs.train("sac", tmp_path / "run", "env_steps=60", "save_interval=20")
    assert within == [["save"]] * 3
