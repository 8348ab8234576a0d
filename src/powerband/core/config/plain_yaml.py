"""SafeLoaderWithoutAliases: loads YAML without aliases."""

from __future__ import annotations

from typing import Any

import yaml


class SafeLoaderWithoutAliases(yaml.SafeLoader):
    """YAML loader that refuses aliases, because aliases can make a small file expand without limit.

    Raises:
        yaml.YAMLError: The text is not valid, or has an alias; ``problem_mark`` is its position.
    """

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            place = self.peek_event().start_mark
            raise yaml.composer.ComposerError(None, None, "it has an alias, which is not allowed", place)
        return super().compose_node(parent, index)
