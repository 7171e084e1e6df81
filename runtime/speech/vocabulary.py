"""The vocabulary of a CTC model: its tokens, the blank, and where words begin."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from intaglio.errors import BundleError, one_line
from intaglio.files.input_files import decode, read_bytes
from intaglio.files.json_decoder import json_decoder

VOCABULARY = "vocabulary.json"  # its name in a bundle
MAX_BYTES = 8 << 20  # of the file; parsing takes several times that in memory
MAX_TOKENS = 1 << 16
MAX_CHARACTERS = 256  # of a token
LARGEST_BIAS = 100.0  # nats
BREAKING = {"Cc", "Zl", "Zp"}  # Unicode categories that break lines or steer a terminal


class _File(msgspec.Struct, forbid_unknown_fields=True):
    tokens: list[str]
    blank: int
    word_mark: str
    blank_bias: float = 0.0


class Vocabulary:
    """The tokens of a CTC model by their index, the blank's index, and the mark at which words begin.

    A mark in a token ends a word and begins the next: "▁the" begins a word, " " alone ends one, "a▁b" does both. Marks
    are not part of the text; the blank has none. `blank_bias` is added to the blank's log-probability before decoding:
    models that miss tokens have a negative one.

    Raises `ValueError` for no or too many tokens, a blank or a bias out of range, an empty mark, and for empty, long or
    repeated tokens and those with control characters; the blank may be any string.
    """

    def __init__(self, tokens: Sequence[str], blank: int, word_mark: str, blank_bias: float = 0.0):
        _check(tokens, blank, word_mark)
        if not abs(blank_bias) <= LARGEST_BIAS:
            raise ValueError(f"blank_bias {blank_bias}, expected -{LARGEST_BIAS} to {LARGEST_BIAS}")
        self.tokens = tuple(tokens)
        self.blank = blank
        self.word_mark = word_mark
        self.blank_bias = blank_bias
        self.pieces = [tuple(token.split(word_mark)) for token in tokens]  # of each token; a word ends between two
        self.pieces[blank] = ("",)

    def __len__(self) -> int:
        return len(self.tokens)

    def text(self, indices: Iterable[int]) -> str:
        """The text of tokens: their words, joined by single spaces."""
        joined = "".join(["\n".join(self.pieces[index]) for index in indices])  # no token has a line break
        return " ".join(word for word in joined.split("\n") if word)


def read_vocabulary(path: Path) -> Vocabulary:
    """Read {"tokens": [...], "blank": index, "word_mark": "▁"} from a file. Raises `BundleError` for anything else."""
    try:
        found = json_decoder(_File).decode(decode(read_bytes(path, MAX_BYTES)))
        return Vocabulary(found.tokens, found.blank, found.word_mark, found.blank_bias)
    except (OSError, ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        reason = getattr(error, "strerror", None) or one_line(error, 200)
        raise BundleError(f"{path}: not a readable vocabulary ({reason}). Re-export the bundle.") from error


def _check(tokens: Sequence[str], blank: int, word_mark: str) -> None:
    if not 2 <= len(tokens) <= MAX_TOKENS:
        raise ValueError(f"{len(tokens)} tokens, expected 2 to {MAX_TOKENS}")
    if not 0 <= blank < len(tokens):
        raise ValueError(f"blank {blank}, expected 0 to {len(tokens) - 1}")
    if not 1 <= len(word_mark) <= MAX_CHARACTERS or _breaks(word_mark):
        raise ValueError(f"word_mark {word_mark[:20]!r}, expected 1 to {MAX_CHARACTERS} printable characters")
    seen: dict[str, int] = {}
    for index, token in enumerate(tokens):
        if index == blank:
            continue
        if not 1 <= len(token) <= MAX_CHARACTERS or _breaks(token):
            raise ValueError(f"token {index} is {token[:20]!r}, expected 1 to {MAX_CHARACTERS} printable characters")
        if seen.setdefault(token, index) != index:
            raise ValueError(f"tokens {seen[token]} and {index} are both {token[:20]!r}, expected each once")


def _breaks(text: str) -> bool:
    return any(unicodedata.category(character) in BREAKING for character in text)
