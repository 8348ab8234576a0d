"""Noise: distribution, independence from the number of ranks, exact state, and the hash compared with plain Python."""

import math

import pytest
import torch

from powerband.core.noise import Noise, NoiseSource
from powerband.core.noise.streams import GOLDEN, splitmix64_

MASK = 2**64 - 1


def test_hash_equals_splitmix_in_python_integers():
    def plain(x: int) -> int:
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
        return x ^ (x >> 31)

    values = torch.randint(-(2**63), 2**63 - 1, (200,), generator=torch.Generator().manual_seed(0))
    assert [v & MASK for v in splitmix64_(values.clone()).tolist()] == [plain(v & MASK) for v in values.tolist()]
    assert GOLDEN & MASK == 0x9E3779B97F4A7C15


def test_uniform_is_uniform():
    draws = torch.cat([noise.uniform(16).flatten() for noise in [Noise(1, "a", torch.arange(500))] for _ in range(10)])
    assert 0 <= draws.min() and draws.max() < 1
    counts = torch.histc(draws, 64, 0, 1)
    chi_square = ((counts - len(draws) / 64) ** 2 / (len(draws) / 64)).sum()
    assert chi_square < 63 + 4 * math.sqrt(2 * 63)


def test_normal_moments_and_tail():
    draws = Noise(2, "b", torch.arange(1000)).normal(201).double()
    assert draws.shape == (1000, 201)
    assert abs(draws.mean()) < 0.01 and abs(draws.var() - 1) < 0.02
    assert abs((draws**3).mean()) < 0.04 and abs((draws**4).mean() - 3) < 0.1
    assert abs((draws.abs() > 1.959964).double().mean() - 0.05) < 0.003
    correlation = torch.corrcoef(draws[:, :60].t()) - torch.eye(60)
    assert correlation.abs().max() < 0.2


def test_pink_noise_is_standard_normal_and_its_power_falls_inversely_with_the_frequency():
    noise = Noise(0, "test", torch.arange(400))
    series = torch.stack([noise.pink(3)[:, 1] for _ in range(512)], 1)
    assert series.mean().abs() < 0.05 and (series.std() - 1).abs() < 0.05
    assert (series.abs() > 2).float().mean().item() == pytest.approx(0.0455, abs=0.01)
    power = torch.fft.rfft(series).abs().square().mean(0)[2:257]
    frequency = torch.arange(2, 257).float()
    bands = [(4, 8), (8, 16), (16, 32), (32, 64), (64, 128), (128, 256)]
    x = torch.tensor([frequency[low - 2 : high - 2].log().mean() for low, high in bands])
    y = torch.tensor([power[low - 2 : high - 2].mean().log() for low, high in bands])
    slope = ((x - x.mean()) * (y - y.mean())).sum() / (x - x.mean()).square().sum()
    assert -1.25 < slope < -0.75


def test_pink_noise_of_a_part_or_a_restored_stream_equals_that_of_the_full_stream():
    whole, parts = Noise(3, "test", torch.arange(6)), Noise(3, "test", torch.arange(6))
    for _ in range(5):
        expected = whole.pink(2)
        torch.testing.assert_close(torch.cat([parts.row_slice(0, 2).pink(2), parts.row_slice(2, 4).pink(2)]), expected)
    restored = Noise(3, "test", torch.arange(6))
    restored.load_state_dict(whole.state_dict())
    assert torch.equal(restored.pink(2), whole.pink(2))


def test_compiled_functions_draw_the_same_numbers():
    def draws(noise: Noise) -> dict[str, torch.Tensor]:
        part = noise.row_slice(2, 3)
        return {
            "bits": noise.bits(5),
            "uniform": noise.uniform(2, 2),
            "integers": noise.integers(torch.tensor(2**31 - 1), 7),
            "integers below an int": noise.integers(10),
            "permutation": noise.permutation(),
            "normal": noise.normal(3),
            "one normal": noise.normal(1),
            "pink": noise.pink(3),
            "pink again": noise.pink(3),
            "pink part": part.pink(4),
        }

    plain, compiled = (Noise(7, "a", torch.arange(6), compiled=compiled) for compiled in (False, True))
    for _ in range(40):  # pink noise changes its slow terms after many draws
        expected, found = draws(plain), draws(compiled)
    assert compiled.counter.item() == plain.counter.item() == 40 * 9
    for name, numbers in expected.items():
        assert found[name].shape == numbers.shape and found[name].dtype == numbers.dtype, name
        if "normal" in name or "pink" in name:
            torch.testing.assert_close(found[name], numbers, rtol=1e-5, atol=2e-6)
        else:
            assert torch.equal(found[name], numbers), name


@pytest.mark.parametrize("high", [1, 7, 1000, 2**31 - 1])
def test_integers_stay_below_high(high):
    draws = Noise(3, "c", torch.arange(1000)).integers(high, 5)
    assert draws.min() >= 0 and draws.max() < high
    assert torch.equal(draws, Noise(3, "c", torch.arange(1000)).integers(torch.tensor(high), 5))
    assert abs(draws.double().mean() / max(high - 1, 1) - 0.5) < 0.02 or high == 1


def test_permutation_is_a_permutation():
    noise = Noise(4, "d", torch.arange(100))
    first, second = noise.permutation(), noise.permutation()
    assert first.sort().values.tolist() == list(range(100)) and not torch.equal(first, second)


def test_split_over_ranks_changes_nothing():
    full = Noise(5, "e", torch.arange(10))
    halves = [Noise(5, "e", torch.arange(5)), Noise(5, "e", torch.arange(5, 10))]
    for _ in range(3):
        assert torch.equal(full.normal(3), torch.cat([half.normal(3) for half in halves]))
    sources = [NoiseSource(5, rank=rank) for rank in range(2)]
    assert torch.equal(NoiseSource(5)("e", 10).uniform(2), torch.cat([s("e", 5).uniform(2) for s in sources]))


def test_seed_purpose_id_and_counter_all_matter():
    def draw(seed=0, purpose="p", start=0, skip=0):
        noise = Noise(seed, purpose, torch.arange(start, start + 50))
        for _ in range(skip):
            noise.uniform()
        return noise.uniform(4)

    draws = [draw(), draw(seed=1), draw(purpose="q"), draw(start=50), draw(skip=1)]
    for i, left in enumerate(draws):
        assert not any(torch.isin(left, right).float().mean() > 0.01 for right in draws[i + 1 :])


def test_state_round_trip():
    source = NoiseSource(6)
    source("f", 4).uniform()
    source("g", 3).normal(2)
    saved = {name: counter.clone() for name, counter in source.state_dict().items()}
    expected = source("f", 4).uniform(3), source("g", 3).normal(5)
    fresh = NoiseSource(6)
    fresh.load_state_dict(saved)
    assert torch.equal(fresh("f", 4).uniform(3), expected[0]) and torch.equal(fresh("g", 3).normal(5), expected[1])


def test_row_slices_draw_the_numbers_of_the_full_stream():
    full, parted = NoiseSource(6, rank=1), NoiseSource(6, rank=1)
    for number in range(4):
        expected = full("act", 5).normal(2)
        found = []
        for rows in (slice(0, 2), slice(2, 5)):
            with parted.row_slice(rows, 5):
                found.append(parted("act", rows.stop - rows.start).normal(2))
        assert torch.equal(expected, torch.cat(found))
        assert torch.equal(full("other", 3).uniform(), parted("other", 3).uniform())
        assert torch.equal(full("act", 2).normal(), parted("act", 2).normal()), "another size counts too"
        if number == 1:  # a new source continues from the saved state
            saved, parted = parted.state_dict(), NoiseSource(6, rank=1)
            parted.load_state_dict(saved)
        if number == 2:  # an existing source too
            parted.load_state_dict({name: counter.clone() for name, counter in full.state_dict().items()})
    assert set(parted.state_dict()) == set(full.state_dict())


def test_streams_continue_on_another_number_of_ranks_without_repeating_a_number():
    def joint(world_size: int, sources: list[NoiseSource]) -> torch.Tensor:
        return torch.cat([source("act", 4 // world_size).uniform(3) for source in sources])

    undisturbed = NoiseSource(7)
    draws = [joint(1, [undisturbed]) for _ in range(5)]
    two = [NoiseSource(7, rank=rank) for rank in range(2)]
    assert all(torch.equal(joint(2, two), draw) for draw in draws[:2])
    four = [NoiseSource(7, rank=rank) for rank in range(4)]
    four[0]("act", 1)  # a stream that exists before the checkpoint is loaded
    for source in four:
        source.continue_from(two[1].state_dict())
    assert torch.equal(joint(4, four), draws[2])
    one = NoiseSource(7)
    one.continue_from(four[3].state_dict())
    assert all(torch.equal(joint(1, [one]), draw) for draw in draws[3:])


def test_purposes_that_a_resumed_run_has_not_used_again_keep_their_counters():
    """Saved by one rank, continued and saved by two without a draw, continued by one or two."""
    first = NoiseSource(7)
    draws = [first("act", 4).uniform(3) for _ in range(3)]
    two = [NoiseSource(7, rank=rank) for rank in range(2)]
    for source in two:
        source.continue_from(first.state_dict())
    saved = two[0].state_dict()
    alone = NoiseSource(7)
    alone.continue_from(saved)
    for source in two:
        source.load_state_dict(saved)
    expected = first("act", 4).uniform(3)
    assert not any(torch.equal(expected, draw) for draw in draws)
    assert torch.equal(torch.cat([source("act", 2).uniform(3) for source in two]), expected)
    assert torch.equal(alone("act", 4).uniform(3), expected)
    assert set(alone.state_dict()) == {"act:4"}


def test_another_batch_size_continues_the_stream_of_its_purpose():
    source = NoiseSource(7)
    draws = [source("replay", 4).uniform(3) for _ in range(3)]
    resumed = NoiseSource(7)
    resumed.load_state_dict(source.state_dict())
    smaller = resumed("replay", 2).uniform(3)
    assert not any(torch.equal(smaller, draw[:2]) for draw in draws)
    assert torch.equal(smaller, source("replay", 4).uniform(3)[:2])


def test_sizes_that_take_turns_repeat_no_number():
    source = NoiseSource(7)
    draws = [source("sample", rows).uniform(3)[:2] for rows in (4, 2, 4, 2)]
    assert len({tuple(draw.flatten().tolist()) for draw in draws}) == 4
    resumed = NoiseSource(7)
    resumed.load_state_dict({name: counter.clone() for name, counter in source.state_dict().items()})
    assert torch.equal(resumed("sample", 4).uniform(3), source("sample", 4).uniform(3))


def test_a_state_of_streams_that_counted_apart_continues_at_the_largest_counter():
    source = NoiseSource(7)
    source.load_state_dict({"sample:4": torch.tensor(5), "sample:2": torch.tensor(3)})
    assert int(source("sample", 2).counter) == int(source("sample", 4).counter) == 5
