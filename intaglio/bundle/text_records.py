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
    query: bool = False  # the text is read as a query, by a model that returns a vector for each token


class TokenVectors(msgspec.Struct, frozen=True):
    """How a model that returns a vector for each token reads queries, and which tokens have none."""

    query_length: int  # maximum tokens of a query
    expanded_to: int = 0  # tokens that a shorter query is filled up to; 0: it is not
    expansion_token: int = 0  # with this one
    attends: bool = False  # to the tokens that a query is filled up with
    skipped: tuple[int, ...] = ()  # tokens without a vector
    skips_documents: bool = True  # in documents
    skips_queries: bool = False  # in queries
    mean: bool = False  # a score is the mean over the vectors of the query, not the sum
