"""The description of a family of encoders."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Family:
    """A family of encoders, as `transformers` implements it.

    `model_type` is its name in config.json; `architectures` maps the names that config.json may list to our tasks;
    `max_length` reads the maximum sequence length, in tokens, from config.json; `blocks` is the path of the list of
    Transformer blocks below the base model.
    """

    model_type: str
    base: str  # the architecture without a head
    architectures: Mapping[str, str]
    inputs: tuple[str, ...]
    max_length: Callable[[Mapping[str, Any]], int]
    blocks: str
    has_pooler: bool  # a BERT-style pooler, which no supported task uses and which can be left out
    pad_token_id: int = 0  # the default of `transformers` for a config.json without one
    causal: bool = False  # a token attends only to those before it
    window: Callable[[Mapping[str, Any]], int | None] = lambda _: None  # and only to this number of them, with itself
