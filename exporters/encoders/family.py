"""What a family of encoders is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Family:
    """A family of encoders, as `transformers` implements it.

    `model_type` is what config.json calls it; `architectures` maps the names that config.json may list to our
    tasks; `max_length` reads the longest sequence, in tokens, from config.json; `blocks` is the path of the list
    of Transformer blocks below the base model.
    """

    model_type: str
    base: str  # the architecture without a head
    architectures: Mapping[str, str]
    inputs: tuple[str, ...]
    max_length: Callable[[Mapping[str, Any]], int]
    blocks: str
    has_pooler: bool  # a BERT-style pooler, which no supported task uses and which can be left out
