"""The tokenizer as llguidance reads it: the bytes of each token, and a token of its own for the end of a text."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

import msgspec

from intaglio.errors import UsageError, one_line
from intaglio.extras import load
from intaglio.runtime.sampling.grammar_check import GrammarCheck

if TYPE_CHECKING:
    from llguidance import LLTokenizer
    from tokenizers import Tokenizer

END = "<|end of constrained text|>"  # the content of a token that no text has


class GrammarTokenizer(NamedTuple):
    """A tokenizer for grammars. Its token `size` means that the text may end; those before it are the tokenizer's."""

    library: LLTokenizer
    size: int  # token ids of the tokenizer, including unused ones
    check: GrammarCheck


_known: WeakKeyDictionary[Tokenizer, GrammarTokenizer] = WeakKeyDictionary()
_lock = threading.Lock()


def grammar_tokenizer(tokenizer: Tokenizer) -> GrammarTokenizer:
    """Return the tokenizer for grammars of `tokenizer`. The first call takes up to a second, the next ones nothing.

    Which tokens end a text depends on the request, so the library gets an end token that is in no vocabulary. Raises
    `MissingExtraError` without llguidance, `UsageError` for a tokenizer whose tokens have no bytes of their own.
    """
    with _lock:
        known = _known.get(tokenizer)
        if known is None:
            _known[tokenizer] = known = _read(tokenizer)
    return known


def _read(tokenizer: Tokenizer) -> GrammarTokenizer:
    library: Any = load("llguidance")
    size = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1
    fields = msgspec.json.decode(tokenizer.to_str(), type=dict[str, msgspec.Raw])
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    end = {"id": size, "content": END, "special": True, **plain}
    fields["added_tokens"] = msgspec.Raw(json.dumps([*msgspec.json.decode(fields["added_tokens"]), end]).encode())
    try:
        text = msgspec.json.encode(fields).decode()
        made = library.LLTokenizer(text, eos_token=size)
    except ValueError as error:
        raise UsageError(
            f"the tokenizer cannot be constrained by a grammar: {one_line(error, 200)}. "
            "Expected one with tokens of bytes (ByteLevel or ByteFallback decoder). Use another model."
        ) from error
    return GrammarTokenizer(made, size, GrammarCheck(text, size))
