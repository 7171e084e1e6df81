"""The description of a family of encoders."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from intaglio.errors import SourceError
from intaglio.exporters.checkpoints.family import Family
from intaglio.exporters.files.config import integer


@dataclass(frozen=True)
class EncoderFamily(Family):
    """A family of encoders, as `transformers` implements it; `architecture` is the one without a head.

    `tasks` maps the architectures that config.json may list to our tasks; `max_length` reads the maximum sequence
    length, in tokens, from config.json; `blocks` is the path of the list of Transformer blocks below the base model, or
    finds it in the model.
    """

    tasks: Mapping[str, str]
    inputs: tuple[str, ...]
    max_length: Callable[[Mapping[str, Any]], int]
    blocks: str | Callable[[Any], str]
    has_pooler: bool  # a pooler that can be left out, and is unless `returns_pooled`
    pad_token_id: int = 0  # the default of `transformers` for a config.json without one
    counts_padding: bool = False  # positions count from the first column, padding or not
    returns_pooled: bool = False  # without a head, what a pooler computes is an output, too
    causal: bool = False  # a token attends only to those before it

    @property
    def architectures(self) -> Collection[str]:
        """See `Family`."""
        return self.tasks.keys()

    @property
    def learned_positions(self) -> bool:
        """See `Family`."""
        return True

    def check(self, config: Mapping[str, Any], where: str) -> None:
        """See `Family`: other positions, and impossible numbers of layers, are not supported."""
        if (positions := config.get("position_embedding_type", "absolute")) != "absolute":
            raise SourceError(f"{where}: position embeddings of type {positions!r} are not supported, only 'absolute'.")
        for key in ("num_hidden_layers", "n_layers"):
            integer(config, key, 1, default=1)

    def load_options(self, architecture: str, tensors: Collection[str]) -> dict[str, bool]:
        """See `Family`: with the pooler if it has weights."""
        pooler = any("pooler." in name for name in tensors)
        return {"add_pooling_layer": pooler} if self.has_pooler and architecture == self.architecture else {}
