"""Reading YAML that a user wrote: plain values only, in bounded memory."""

from __future__ import annotations

from typing import Any

import yaml


class _Loader(yaml.SafeLoader):
    """A YAML loader without aliases, with which a few lines can expand to more than fits into memory."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Compose a node; the library calls this for each one."""
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases are not allowed")
        node: yaml.Node | None = super().compose_node(parent, index)
        return node

    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> str:
        """Return the text of a node. Two escapes that are the halves of one character become that character."""
        text: str = super().construct_scalar(node)
        try:
            return text.encode("utf-16", "surrogatepass").decode("utf-16")
        except UnicodeDecodeError as error:
            raise yaml.YAMLError("a lone surrogate is not a character") from error


def load_yaml(text: str) -> Any:
    """Return the value of a YAML text. Raises various exceptions: the library has its own for odd numbers and dates."""
    return yaml.load(text, _Loader)  # noqa: S506 a SafeLoader
