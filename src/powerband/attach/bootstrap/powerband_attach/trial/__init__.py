"""Trial: the profile's measurement of a run with one change made from outside.

The environment variable ``POWERBAND_TRIAL`` names a JSON file with the settings of the run, see `settings`.
"""

from __future__ import annotations


def begin() -> None:
    """Makes the change, and starts the measurement of this process."""
    from powerband_attach.trial import settings

    settings.load()
    from powerband_attach import outside_writes, profile
    from powerband_attach.trial import (
        end,
        loaders,
        optimisers,
        output,
        precision,
        probe,
        rendering,
        threads,
        vector_envs,
    )

    outside_writes.install(settings.get("folder", ""))
    for part in (loaders, optimisers, output, precision, rendering, threads, vector_envs, probe, end):
        part.install()
    profile.begin()
