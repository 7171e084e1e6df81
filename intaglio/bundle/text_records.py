"""What bundle.json records of the texts around those that a model reads."""

from __future__ import annotations

import msgspec


class PairTemplate(msgspec.Struct, frozen=True):
    """The one text that a model reads in place of a pair: `before`, a text, `between`, the other text, `after`."""

    before: str
    between: str
    after: str
    document_first: bool = False  # else the query is


class Prompt(msgspec.Struct, frozen=True):
    """A text that is put before the texts to embed, or before the queries of pairs."""

    text: str
    excluded_tokens: int = 0  # first tokens of the whole text that pooling leaves out; 0: pooling includes the prompt
    pair: PairTemplate | None = None  # of a model that reads pairs as one text; it has the prompt in it
