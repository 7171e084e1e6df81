"""Windows of a text that is longer than a model reads: tokens of each, with their characters in the text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from intaglio.errors import ContextLengthError, UsageError
from intaglio.runtime.text.tokenizer import Pair, Tokenizer, TokenSequence, check_unicode, check_words

if TYPE_CHECKING:
    from tokenizers import Encoding


class Window(NamedTuple):
    """Consecutive tokens of a text, all where it is short, with the special ones; of a pair, after the first text."""

    encoding: Encoding
    sequence: TokenSequence


def windows_of(tokenizer: Tokenizer, text: str | Pair, limit: int | None, stride: int | None) -> list[Window]:
    """The windows of `text`, of at most `limit` tokens, which share `stride` tokens; of a pair, of its second text.

    Without a `stride` there is one. Raises `UsageError` for a text that is too long for it, or leaves no room.
    """
    for part in text if isinstance(text, Pair) else (text,):
        check_unicode(part)
        check_words(part)
    backend: Any = tokenizer.backend
    backend.no_truncation()
    if limit is not None and stride is not None:
        room = _room(tokenizer, text, limit)
        if stride >= room:
            raise UsageError(
                f"stride {stride}: expected less than the {room} tokens that a window has for the text. Reduce it."
            )
        strategy = "only_second" if isinstance(text, Pair) else "longest_first"
        backend.enable_truncation(limit, stride=stride, strategy=strategy)
    encoded = backend.encode(*text) if isinstance(text, Pair) else backend.encode(text)
    windows = [Window(each, TokenSequence(each.ids, each.type_ids)) for each in (encoded, *encoded.overflowing)]
    for window in windows:
        tokenizer.check_length(text, window.sequence)
    return windows


def _room(tokenizer: Tokenizer, text: str | Pair, limit: int) -> int:
    """The tokens of the text, the second one of a pair, in a window. Raises `UsageError` if there is none."""
    backend: Any = tokenizer.backend
    first = len(backend.encode(text.first, add_special_tokens=False).ids) if isinstance(text, Pair) else 0
    room = limit - int(backend.num_special_tokens_to_add(isinstance(text, Pair))) - first
    if room < 1:
        raise ContextLengthError(
            f"question of {first} tokens: a window has {limit}, and none for the text. Shorten the question."
        )
    return room
