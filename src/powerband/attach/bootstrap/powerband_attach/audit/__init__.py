"""Audit: records which options a script reads, changes options from outside, and records what a run computes.

The environment variable ``POWERBAND_AUDIT`` names a JSON file with the settings of the run, see `settings`.
"""

from __future__ import annotations


def begin() -> None:
    """Starts the audit of this process."""
    from powerband_attach.audit import settings

    settings.load()
    from powerband_attach import outside_writes
    from powerband_attach.audit import facts, libraries, seeds
    from powerband_attach.audit.parsers import argument_parser, dataclass, flags, mapping, omega_conf
    from powerband_attach.audit.runtime import environments, optimisers

    outside_writes.install(settings.get("folder", ""))
    for part in (seeds, argument_parser, dataclass, mapping, omega_conf, flags):
        part.install()
    for part in (facts, libraries, environments, optimisers):
        part.install()
