"""What all families have in common: the names by which a config.json identifies them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Family:
    """A family of models, by its `model_type` in config.json; `architecture` is built where config.json lists none."""

    model_type: str
    architecture: str

    @property
    def architectures(self) -> Collection[str]:
        """The architectures that config.json may list."""
        return (self.architecture,)

    @property
    def learned_positions(self) -> bool:
        """Whether a weight of the model has one row per position."""
        return False

    @property
    def unread(self) -> Collection[str]:
        """Lengths of config.json that no model of the family has; their values do not matter."""
        return ()

    def check(self, config: Mapping[str, Any], where: str) -> None:
        """Raise `SourceError` for settings of config.json that the export does not support; `where` names it."""

    def load_options(self, architecture: str, tensors: Collection[str]) -> dict[str, bool]:
        """The options with which `transformers` builds an `architecture` that has the weights `tensors`."""
        return {}


def listed_architecture(config: Mapping[str, Any]) -> str:
    """The first architecture that a config.json lists; "" if none."""
    listed = config.get("architectures") or ""
    return str(listed[0]) if isinstance(listed, list) else str(listed)


def architecture_of(config: Mapping[str, Any], family: Family) -> str:
    """The class that a config.json of `family` is exported as: the first that it lists, else the family's own."""
    return listed_architecture(config) or family.architecture
