"""Sizes: global sizes divide or are refused with valid sizes, and learning rates follow ``lr_scale``."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from powerband.cli.catalogue import configure
from powerband.core.config.sizes import per_rank, scaled_lr
from powerband.core.errors import ConfigError


@given(st.integers(0, 10**6), st.integers(1, 64))
def test_per_rank_divides_or_names_divisible_sizes(total: int, world_size: int) -> None:
    try:
        assert per_rank("num_envs", total, world_size) * world_size == total
    except ConfigError as error:
        numbers = [int(part) for part in str(error).split("num_envs=")[-1].rstrip(".").split(" or ")]
        assert numbers and all(number > 0 and number % world_size == 0 for number in numbers)
        assert all(abs(number - total) < world_size for number in numbers)


def test_scaled_lr() -> None:
    @dataclass(frozen=True)
    class Section:
        actor_lr: float = 0.1
        lr: float = 0.5
        tau: float = 0.3

    for rule, factor in (("none", 1.0), ("sqrt", 2.0), ("linear", 4.0)):
        scaled, line = scaled_lr(Section(), rule, 4)
        assert (scaled.actor_lr, scaled.lr, scaled.tau) == (0.1 * factor, 0.5 * factor, 0.3)
        assert f"lr_scale={rule}: times {factor:g} for 4 rank(s)" in line


def test_defaults_that_do_not_divide_are_rounded_up_and_choices_of_the_user_are_not(monkeypatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "3")
    _, _, resolved = configure("snakes", ["algo=ddpg", "off_policy.global_batch_size=512"])
    assert (resolved.config.off_policy.num_envs, resolved.config.off_policy.replay_size) == (3, 100_002)
    assert resolved.config.off_policy.global_batch_size == 512, "512 was written by the user; it is refused later"
    assert resolved.config.on_policy.num_envs == 256, "ddpg does not read it"
    assert "off_policy.num_envs=3, off_policy.replay_size=100002" in " ".join(resolved.notices)
    assert configure("uav", [])[2].config.on_policy.num_envs == 12
