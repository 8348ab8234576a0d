"""Configuration: dataclasses, YAML files and the command line become one frozen configuration."""

from powerband.core.config.flags import at_least
from powerband.core.config.resolve import DEFAULT, ResolvedConfig, from_json, resolve, to_dict, to_json
from powerband.core.config.run_config import RunConfig

__all__ = ["DEFAULT", "ResolvedConfig", "RunConfig", "at_least", "from_json", "resolve", "to_dict", "to_json"]
