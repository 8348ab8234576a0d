"""Configuration: dataclasses, YAML files and the command line become one frozen configuration."""

from powerband.core.config.ranges import Range, check_ranges
from powerband.core.config.resolve import DEFAULT, ResolvedConfig, from_json, resolve, stored_config
from powerband.core.config.run_config import RunConfig
from powerband.core.config.saved import to_dict, to_json

__all__ = [
    "DEFAULT",
    "ResolvedConfig",
    "RunConfig",
    "Range",
    "check_ranges",
    "from_json",
    "resolve",
    "stored_config",
    "to_dict",
    "to_json",
]
