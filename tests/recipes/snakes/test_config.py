"""Options of snakes: notices about options without effect, and about shares of boards on several ranks."""

from __future__ import annotations

import re

import pytest

from powerband.cli.catalogue import configure


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("opponent=greedy pool_size=8 mirrored=0.5", "mirrored=0.5, pool_size=8: no effect without self-play"),
        ("algo=ddpg snapshot_interval=3", "snapshot_interval=3: no effect without self-play"),
        ("plane_channels=8", "plane_channels=8: no effect without observation=planes"),
        ("nproc=2 on_policy.num_envs=20 mirrored=0.75", "Write on_policy.num_envs=24 for a whole number"),
        ("on_policy.num_envs=16 mirrored=0.99", "leaves none of the 16 boards .* Write mirrored=0.9375 or less"),
        ("opponent=greedy", ""),
        ("observation=planes plane_channels=8", ""),
        ("nproc=2 pool_size=8 snapshot_interval=3", ""),
        ("on_policy.num_envs=10", ""),
        ("on_policy.num_envs=16 mirrored=1", ""),
    ],
)
def test_notices_about_options_without_effect(arguments: str, message: str) -> None:
    notices = configure("snakes", arguments.split())[2].notices
    assert len(notices) == bool(message)
    assert all(re.search(message, each) for each in notices)
