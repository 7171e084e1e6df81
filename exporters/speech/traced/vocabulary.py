"""The vocabulary of a CTC model of `transformers`: its tokens, the blank, and the token between words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from intaglio.errors import SourceError, one_line
from intaglio.extras import load
from intaglio.runtime.speech.vocabulary import VOCABULARY, Vocabulary

TOKENIZER = "Wav2Vec2CTCTokenizer"
SPACE = " "


def write_vocabulary(folder: Path, size: int, target: Path) -> Vocabulary:
    """Write the tokens 0 to `size` - 1 of the checkpoint in `folder` to the folder `target`.

    Raises `SourceError` for a tokenizer that is missing, damaged, or of another class.
    """
    tokenizer = _tokenizer(folder)
    absent = [number for number in range(size) if number not in tokenizer.decoder.keys() | _added(tokenizer)]
    if absent:
        raise SourceError(
            f"{folder}: vocab.json has no token {absent[0]}, config.json a vocab_size of {size}. "
            "Take both files from the same checkpoint."
        )
    tokens: list[str] = tokenizer.convert_ids_to_tokens(range(size))
    mark, blank = tokenizer.word_delimiter_token or "|", tokenizer.pad_token_id
    inside = [token for token in tokens if mark in token and token != mark]
    if inside or tokenizer.replace_word_delimiter_char != SPACE:
        got = f"{inside[0]!r} contains" if inside else f"{tokenizer.replace_word_delimiter_char!r} replaces"
        raise SourceError(
            f"{folder}: {got[:80]} the word_delimiter_token {mark!r}: only a token of its own that becomes a space is "
            "supported. Export another model."
        )
    if tokenizer.do_lower_case:
        tokens = [token.lower() for token in tokens]
    try:
        if not isinstance(blank, int):
            raise ValueError("it has no pad_token, which is the blank")
        vocabulary = Vocabulary(tokens, blank, mark)
    except ValueError as error:
        raise SourceError(f"{folder}: the tokenizer is not supported: {error}. Export another model.") from error
    found = {"tokens": tokens, "blank": blank, "word_mark": mark}
    (target / VOCABULARY).write_bytes(msgspec.json.encode(found))
    return vocabulary


def _tokenizer(folder: Path) -> Any:
    transformers: Any = load("transformers")
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            str(folder), trust_remote_code=False, local_files_only=True
        )
    except Exception as error:  # the library raises all kinds of exceptions
        reason = one_line(error, 200).rstrip(".")
        raise SourceError(f"{folder}: no readable tokenizer ({reason}). Copy it from the original.") from error
    if (name := type(tokenizer).__name__) != TOKENIZER:
        raise SourceError(f"{folder}: tokenizer {name} is not supported for this model, only {TOKENIZER}.")
    return tokenizer


def _added(tokenizer: Any) -> set[int]:
    return set(tokenizer.added_tokens_decoder)
