"""Profile: measures where the time of each process of a script goes."""

from __future__ import annotations

from powerband_attach.profile import call_sites, environments, learning, loaders, sampler


def begin() -> None:
    """Starts the measurement of this process."""
    environments.watch()
    learning.watch()
    loaders.watch()
    call_sites.watch()
    sampler.begin()
