"""Pairs that a model reads as one text, filled into its template: a query and a document between fixed texts.

The template ends with what the model answers to, so its end is put back where truncation cut it off, in the way of
sentence-transformers: the last tokens that are the same for any texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import takewhile
from typing import TYPE_CHECKING

from intaglio.bundle.text_records import PairTemplate

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

FILLERS = ("0", "1 2 3 4")  # texts whose tokens differ, so that common tokens at the end are the template's


def filled(template: PairTemplate, query: str, document: str) -> str:
    """The text of a pair."""
    first, second = (document, query) if template.document_first else (query, document)
    return f"{template.before}{first}{template.between}{second}{template.after}"


class PairTexts:
    """A template, with the tokenizer that its texts are read with."""

    def __init__(self, template: PairTemplate, backend: Backend):
        self._template, self._backend = template, backend

    def __call__(self, query: str, document: str) -> str:
        """The text of a pair."""
        return filled(self._template, query, document)

    def with_end(self, ids: Sequence[int], limit: int) -> list[int]:
        """The tokens of a text, which were truncated to `limit`: the last ones become those of the template's end."""
        end = self._end[-len(ids) :] if len(ids) >= limit else []
        return [*ids[: len(ids) - len(end)], *end]

    @cached_property
    def _end(self) -> list[int]:
        """The common last tokens of two texts; none if the texts do not differ."""
        self._backend.no_truncation()
        first, second = (self._backend.encode(self(text, text), add_special_tokens=False).ids for text in FILLERS)
        alike = takewhile(lambda pair: pair[0] == pair[1], zip(reversed(first), reversed(second), strict=False))
        count = len(list(alike))
        return first[len(first) - count :] if count < min(len(first), len(second)) else []
