from __future__ import annotations

import json

import pytest
import torch

from powerband.core.ranks.ranks import Ranks
from powerband.core.telemetry.metrics import JsonlSink, Metrics, TensorBoardSink


def flush(metrics: Metrics, step: int) -> dict:
    return metrics.flush(step, step * 2, {"charts/SPS": 7.0}, time_s=1.0)


def test_means_are_taken_over_the_interval_and_masked_figures_over_their_rows():
    metrics = Metrics([], Ranks())
    metrics.add({"losses/a": torch.tensor(1.0), "losses/b": torch.tensor(10.0)})
    metrics.add({"losses/a": torch.tensor(4.0), "losses/b": torch.tensor(20.0)}, weight=2)
    metrics.add_masked("charts/return", torch.tensor([1.0, 100.0, 3.0]), torch.tensor([True, False, True]))
    metrics.add_masked("charts/return", torch.tensor([5.0, torch.nan, 0.0]), torch.tensor([True, False, False]))
    metrics.add_masked("charts/none", torch.zeros(2), torch.zeros(2, dtype=torch.bool))
    metrics.set_scalar("eval/x", 2.0)
    line = flush(metrics, 5)
    assert line["losses/a"] == pytest.approx(3.0)
    assert line["losses/b"] == pytest.approx(50 / 3)
    assert line["charts/return"] == pytest.approx(3.0)
    assert (line["env_steps"], line["grad_steps"], line["eval/x"], line["charts/SPS"]) == (5, 10, 2.0, 7.0)
    assert "charts/none" not in line
    assert "losses/a" not in flush(metrics, 6)


def test_means_cover_updates_that_return_different_figures():
    """An update with a step of the actor has further figures."""
    metrics = Metrics([], Ranks())
    metrics.add({"losses/critic": torch.tensor(100.0)})
    metrics.add({"losses/critic": torch.tensor(1.0), "losses/actor": torch.tensor(7.0)})
    line = flush(metrics, 5)
    assert (line["losses/critic"], line["losses/actor"]) == (50.5, 7.0)


def test_totals_are_summed_over_ranks_and_stay():
    class Two(Ranks):
        """The other rank has counted two failures and no means."""

        def gather(self, value):
            return [value, [[], {"charts/env_failures": 2}]]

    metrics = Metrics([], Two())
    assert flush(metrics, 5)["charts/env_failures"] == 2
    metrics.add_count("charts/env_failures")
    assert flush(metrics, 6)["charts/env_failures"] == flush(metrics, 7)["charts/env_failures"] == 3
    assert "charts/env_failures" not in flush(Metrics([], Ranks()), 5)


def test_a_resumed_interval_has_the_same_means():
    uninterrupted, first, second = (Metrics([], Ranks()) for _ in range(3))
    figures = [{"a/x": torch.tensor(float(value))} for value in (1, 2, 6)]
    for part in figures:
        uninterrupted.add(part)
    first.add(figures[0])
    second.load_state_dict(first.state_dict())
    for part in figures[1:]:
        second.add(part)
    assert flush(uninterrupted, 1) == flush(second, 1)


def test_jsonl_rewinds_and_removes_an_incomplete_line(tmp_path):
    path = tmp_path / "metrics.jsonl"
    sink = JsonlSink(path)
    for step in (10, 20, 30):
        sink.write({"env_steps": step, "grad_steps": 0, "time_s": 1.0, "a/x": float("nan")})
    sink.close()
    with path.open("a") as file:
        file.write('{"env_steps": 40, "a/')
    sink = JsonlSink(path)
    sink.rewind(20, 20)
    sink.write({"env_steps": 25})
    sink.close()
    lines = [json.loads(text) for text in path.read_text().splitlines()]
    assert [line["env_steps"] for line in lines] == [10, 20, 25]
    assert lines[0]["a/x"] is None


def test_tensorboard_has_the_figures_at_environment_steps(tmp_path):
    sink = TensorBoardSink(tmp_path)
    sink.write({"env_steps": 12, "grad_steps": 3, "charts/SPS": 5.0})
    sink.close()
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("charts/SPS")] == [(12, 5.0)]


def test_a_kept_evaluation_may_have_a_figure_that_was_not_finite(tmp_path):
    """The interval of one episode is not a number, which metrics.jsonl stores as null."""
    line = {"env_steps": 20, "eval/return": 3.0, "eval/return_low": None, "time/training_s": 1.0, "time_s": 1.0}
    (tmp_path / "metrics.jsonl").write_text(json.dumps({**line, "grad_steps": 1}) + "\n")
    sink = TensorBoardSink(tmp_path)
    sink.rewind(10, 20)
    sink.write({"env_steps": 30, "grad_steps": 3, "charts/SPS": 5.0})
    sink.close()
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("eval/return")] == [(20, 3.0)]
    assert "eval/return_low" not in events.Tags()["scalars"]
