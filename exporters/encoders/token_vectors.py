"""Queries and documents of a folder of sentence-transformers' MultiVectorEncoder: lengths, expansion, mask."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from intaglio.bundle.text_records import TokenVectors
from intaglio.errors import SourceError
from intaglio.exporters.encoders.sentence_modules import MaskSettings, check_keys
from intaglio.exporters.files.config import integer

SIDES = ("query", "document")  # the library's tasks
STRATEGIES = ("fixed", "min")  # of a query's expansion: "fixed" also truncates to its length
WINDOWS = ("sliding_window", "local_attention")  # of a config.json: tokens around one that it attends to


@dataclass(frozen=True)
class Limits:
    """Of a model: the maximum tokens of any text, its positions, and the tokens that one attends to on each side."""

    tokens: int
    positions: int
    reach: int

    @classmethod
    def of(cls, tokens: int, positions: int, config: Mapping[str, Any]) -> Limits:
        """Those of a model with this config.json."""
        given = [config.get(key) for key in WINDOWS if config.get("use_sliding_window") is not False]
        windows = [window // 2 for window in given if isinstance(window, int)]
        return cls(tokens, positions, min(windows, default=positions))


def read_token_vectors(
    tokenizer: Any, settings: Mapping[str, Any], mask: MaskSettings, mean: bool, limits: Limits, where: Path
) -> tuple[TokenVectors, int]:
    """The settings of the model with this tokenizer (of transformers), and the maximum tokens of a document.

    `settings`: of the file `where`; `mean`: a score is a mean. Raises `SourceError`.
    """
    limit, positions = limits.tokens, limits.positions
    # Which may exceed the limit of other texts.
    query, document = (min(integer(settings, f"{side}_length", 1, limit, str(where)), positions) for side in SIDES)
    if unknown := sorted({*mask.tasks} - {*SIDES}):
        raise SourceError(f"{where.parent}: MultiVectorMask: skiplist_tasks has {unknown[0][:40]!r}. Remove it.")
    skipped = _skipped(tokenizer, mask.words, where)
    sides = {"skips_documents": "document" in mask.tasks, "skips_queries": "query" in mask.tasks}
    found = TokenVectors(query, skipped=skipped, mean=mean, **sides)
    if settings.get("query_expansion") is not None:
        found = _expanding(tokenizer, found, settings, limits, where)
    return found, document


def _expanding(
    tokenizer: Any, found: TokenVectors, settings: Mapping[str, Any], limits: Limits, where: Path
) -> TokenVectors:
    """The same with queries that are filled up."""
    expansion = settings["query_expansion"]
    if not isinstance(expansion, dict):
        raise SourceError(f"{where}: query_expansion {str(expansion)[:60]!r}, expected an object. Fix it.")
    check_keys(expansion, where, "strategy", "attend", "token", "length")
    strategy, length = expansion.get("strategy"), integer(expansion, "length", 1, where=str(where))
    if strategy not in STRATEGIES:
        raise SourceError(f"{where}: query_expansion: strategy {strategy!r}, expected {' or '.join(STRATEGIES)}.")
    if length > limits.positions or (settings.get("query_length") or length) < length:
        raise SourceError(
            f"{where}: query_expansion: length {length}, expected at most query_length, and the model's "
            f"{limits.positions} positions. Reduce it."
        )
    attends, named = expansion.get("attend", False), expansion.get("token")
    if not isinstance(attends, bool) or not isinstance(named, str | None):
        raise SourceError(f"{where}: query_expansion: attend {attends!r}, token {named!r}: expected a bool and a text.")
    if length > limits.reach and not attends:  # the last tokens could have none to attend to
        raise SourceError(
            f"{where}: query_expansion: length {length} without attention to its tokens, expected at most "
            f"{limits.reach}, half of the model's window. Reduce it."
        )
    if tokenizer.padding_side != "right":
        raise SourceError(f"{where}: query_expansion with a tokenizer that pads on the left is not supported.")
    token = tokenizer.convert_tokens_to_ids(named) if named is not None else tokenizer.mask_token_id
    token = tokenizer.eos_token_id if token is None and named is None else token
    if token is None or (token == tokenizer.unk_token_id and named not in (None, tokenizer.unk_token)):
        raise SourceError(f"{where}: query_expansion: its token {named!r} is not in the vocabulary. Name another one.")
    limit = length if strategy == "fixed" else max(found.query_length, length)
    return msgspec.structs.replace(
        found,
        query_length=limit,
        expanded_to=length,
        expansion_token=int(token),
        attends=attends,
    )


def _skipped(tokenizer: Any, words: tuple[str, ...], where: Path) -> tuple[int, ...]:
    """The tokens of `words`; the library leaves out those that the vocabulary lacks."""
    tokens = {word: tokenizer.convert_tokens_to_ids(word) for word in words}
    known = {
        word: token
        for word, token in tokens.items()
        if tokenizer.unk_token_id is None or token != tokenizer.unk_token_id or word == tokenizer.unk_token
    }
    if missing := [word for word, token in known.items() if token is None]:
        raise SourceError(f"{where.parent}: MultiVectorMask: {missing[0]!r} is not in the vocabulary. Remove it.")
    return tuple(sorted(set(known.values())))


def register_prefixes(tokenizer: Any, prefixes: Sequence[str]) -> None:
    """Make each prefix that is in the vocabulary one token of the tokenizer (of transformers), as the library does.

    Else `[unused0]` would become several tokens when it is put before a text.
    """
    from tokenizers import AddedToken

    known = tokenizer.get_vocab().keys() | getattr(tokenizer, "added_tokens_encoder", {}).keys()
    found = []
    for prefix in (each for each in prefixes if each.split()):
        word = next((each for each in (prefix, prefix.split(None, 1)[0]) if each in known), None)
        if word is not None and tokenizer.tokenize(word) != [word]:
            found.append(AddedToken(word, normalized=False, special=True))
    if found:
        tokenizer.add_special_tokens({"additional_special_tokens": found})
