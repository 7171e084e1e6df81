"""Token ids that a client sends instead of text: only those that the model's own tokenizer writes are accepted."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import TYPE_CHECKING

from intaglio.errors import UsageError

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

FIX = "Send text (LangChain: check_embedding_ctx_length=False), or ids of the model's own tokenizer."


class TokenIds:
    """Checks token ids; an embedding of another tokenizer's ids would mean nothing, and look like any other.

    1. All ids are in the vocabulary.
    2. If the tokenizer adds special tokens before or after a text, the ids have them.
    3. If it adds none, their text has these ids.
    """

    def __init__(self, tokenizer: Backend):
        self._tokenizer = tokenizer
        self._vocabulary = tokenizer.get_vocab_size()
        trial = tokenizer.encode("a")
        mask = trial.special_tokens_mask
        first, last = (len(list(takewhile(bool, flags))) for flags in (mask, reversed(mask)))
        self._before = trial.ids[:first]
        self._after = trial.ids[len(mask) - last :] if first < len(mask) else []

    def check(self, ids: Sequence[int]) -> None:
        """Raise `UsageError` for ids of another tokenizer."""
        if not ids:
            return
        if not 0 <= min(ids) <= max(ids) < self._vocabulary:
            raise UsageError(f"token ids {min(ids)} to {max(ids)}, expected 0 to {self._vocabulary - 1}. {FIX}")
        given, before, after = list(ids), self._before, self._after
        if before or after:
            has_special = len(given) >= len(before) + len(after)
            if not has_special or given[: len(before)] != before or given[len(given) - len(after) :] != after:
                expected = f"begin with {before} and end with {after}" if before else f"end with {after}"
                raise UsageError(f"token ids that do not {expected}, as this model's do. {FIX}")
        elif self._tokenizer.encode(self._text(given), add_special_tokens=False).ids != given:
            raise UsageError(f"token ids that this model's tokenizer does not write. {FIX}")

    def _text(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=False)
