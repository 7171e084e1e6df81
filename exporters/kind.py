"""What a kind of models is: how its checkpoints are recognised, exported, and loaded as the source model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from intaglio.exporters.checkpoints.family import Family, listed_architecture
from intaglio.exporters.reference.check import Checked


def _same_dtype(config: Mapping[str, Any], dtype: str, **options: Any) -> str:
    return dtype


def _no_other(config: Mapping[str, Any]) -> None:
    return None


@dataclass(frozen=True)
class Kind:
    """A kind of models, such as encoders: a row of `KINDS`.

    export        `(checkpoint, family, dtype, draft, bounds, **options)` fills the draft of a bundle and, with bounds,
                  returns the differences of its outputs from the source model's
    load          `(checkpoint, family, **options)` returns the source model as a float32 torch module in eval mode; its
                  `forward` takes the bundle's inputs and returns its outputs, in order. None: only `export` compares
    options       the options of `export` and `load` that other kinds do not have
    checked_as    `(config, dtype, **options)` returns the precision whose bounds hold for the comparison
    """

    families: tuple[Family, ...]
    export: Callable[..., dict[str, Checked]]
    load: Callable[..., Any] | None
    options: tuple[str, ...] = ()
    checked_as: Callable[..., str] = _same_dtype
    other: Callable[[Mapping[str, Any]], Family | None] = _no_other  # finds families that are not listed
    any_architecture: bool = False  # config.json may list any: model_type alone decides
    keeps_quantized: bool = False  # weights that a checkpoint stores quantised
    in_sentence_folders: bool = False  # the Transformers of sentence-transformers folders, and no others

    def find(self, config: Mapping[str, Any]) -> Family | None:
        """The family of a config.json, or None if it is of another kind."""
        family = next((each for each in self.families if each.model_type == config.get("model_type")), None)
        listed = "" if self.any_architecture else listed_architecture(config)
        if family is None:
            return self.other(config)
        return family if not listed or listed in family.architectures else None
