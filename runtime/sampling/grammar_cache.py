"""The compiled grammars that requests used last: an agent, or a client of the server, sends the same one again."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Literal

from intaglio.runtime.sampling.grammar import Grammar

if TYPE_CHECKING:
    from tokenizers import Tokenizer

CACHED = 64  # compiled grammars
CACHED_CHARACTERS = 1 << 16  # the longest source of them
CACHED_BYTES = 12 << 20  # the most that one of them takes; half of that for the simplest, as the check counts it
Kind = Literal["schema", "regex", "lark"]

_cache: dict[tuple[Kind, str, Tokenizer], Grammar] = {}  # the last ones used
_lock = threading.Lock()


def compiled(kind: Kind, source: str, tokenizer: Tokenizer) -> Grammar:
    """Return the grammar of a JSON schema, a regular expression, or a Lark text, from the cache if it is there.

    It may take seconds, and may be called in any thread. Raises as `Grammar` does.
    """
    key = (kind, source, tokenizer)
    with _lock:
        if key in _cache:
            _cache[key] = _cache.pop(key)  # the last one used comes last
            return _cache[key]
    grammar = _compile(kind, source, tokenizer)
    if len(source) <= CACHED_CHARACTERS and grammar.bytes <= CACHED_BYTES:
        with _lock:
            _cache[key] = grammar
            if len(_cache) > CACHED:
                del _cache[next(iter(_cache))]
    return grammar


def _compile(kind: Kind, source: str, tokenizer: Tokenizer) -> Grammar:
    if kind == "schema":
        return Grammar.from_json_schema(source, tokenizer)
    return (Grammar.from_regex if kind == "regex" else Grammar.from_lark)(source, tokenizer)
