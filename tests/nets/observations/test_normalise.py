"""Running statistics equal those of all rows."""

import torch

from powerband.nets.observations.normalise import RunningNorm


def test_merged_statistics_equal_those_of_all_rows():
    torch.manual_seed(0)
    norm, parts = RunningNorm(3), [torch.randn(n, 3) * 4 + 7 for n in (5, 100, 31)]
    for part in parts:
        norm.update_statistics(part.view(-1, 1, 3))
    rows = torch.cat(parts)
    torch.testing.assert_close(norm.mean, rows.mean(0))
    torch.testing.assert_close(norm.var, rows.var(0, unbiased=False), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(norm(rows).mean(0), torch.zeros(3), rtol=0, atol=1e-4)


def test_two_ranks_equal_one():
    torch.manual_seed(0)
    halves = torch.randn(2, 50, 3).unbind()
    mean = torch.cat(halves).mean(0)
    averages = iter([mean, sum((half - mean).square().mean(0) for half in halves) / 2])
    one, joint = RunningNorm(3), RunningNorm(3)
    one.update_statistics(halves[0], lambda tensor: tensor.copy_(next(averages)), world_size=2)
    joint.update_statistics(torch.cat(halves))
    torch.testing.assert_close(one.state_dict(), joint.state_dict())


def test_more_rows_than_float32_counts_are_counted():
    norm = RunningNorm(1)
    norm.load_state_dict({"mean": torch.zeros(1), "var": torch.ones(1), "count": torch.tensor(2.0**24)})  # float32
    for _ in range(3):
        norm.update_statistics(torch.zeros(1, 1))
    assert norm.count.item() == 2**24 + 3


def test_the_deviation_around_a_large_mean_is_measured():
    torch.manual_seed(0)
    norm, rows = RunningNorm(1), torch.randn(10_000, 1) + 20_000
    for part in rows.split(100):
        norm.update_statistics(part)
    torch.testing.assert_close(norm.var, rows.double().var(0).float(), rtol=0.02, atol=0)
