"""From text to a bundle's inputs, with the tokenizer that travels in the bundle."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from intaglio.bundle import Bundle
from intaglio.errors import BundleError, UsageError, one_line
from intaglio.runtime.tokenizer_config import (
    CONFIGURATION,
    MODEL_CONFIGURATION,
    SPECIAL_TOKENS,
    read_object,
    special_tokens,
)

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

TOKENIZER = "tokenizer.json"
LONGEST_WORD = 1 << 20  # characters
TRIAL = "abc, a trial: 1, 2 and \u00e9 \u4e16 \U0001f600\n"
WORDS = re.compile(r"\S+|\s+")

# Input of a model -> attribute of the tokenizer's encoding.
COLUMNS = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}


class Tokenizer:
    """Turns sentences into padded batches of `input_ids`, `attention_mask` and, where asked for, type ids.

    How a tokenizer.json pads and cuts says how its maker used it: of that only the padding token counts, and, where
    nobody else says where to cut, its length.
    """

    def __init__(
        self,
        path: Path,
        inputs: Sequence[str],
        max_length: int | None,
        truncation: int | None = None,
        pad: Sequence[str | int | None] = (),
    ):
        """`path` of a tokenizer.json, the model's input names, the most tokens that it takes, and where to cut.

        `pad`: tokens or ids, the first known of which pads where the file names none; else [PAD], <pad>, or id 0 does.
        """
        self.backend, padding, cut = _read(path)
        if unknown := [name for name in inputs if name not in COLUMNS]:
            raise BundleError(
                f"the model takes {', '.join(unknown)}, which no tokenizer gives. Feed it arrays instead."
            )
        self.inputs = tuple(inputs)
        self.max_length = max_length
        self.truncation = min((length for length in (truncation, max_length) if length is not None), default=cut)
        self.pad_token_id = next(_ids(self.backend, padding.get("pad_id"), *pad, "[PAD]", "<pad>", 0))
        self.backend.enable_padding(pad_id=self.pad_token_id, pad_type_id=padding.get("pad_type_id", 0))

    @classmethod
    def open(cls, bundle: Bundle) -> Tokenizer:
        """The tokenizer of `bundle`. Raises `BundleError` when there is none."""
        path = _path(bundle)
        sequence = bundle.manifest.axes.get("sequence")
        names = [spec.name for spec in bundle.manifest.inputs]
        maximum = sequence.maximum if sequence else None
        return cls(path, names, maximum, bundle.manifest.truncation, _padding_tokens(bundle))

    @property
    def mask_token_id(self) -> int | None:
        """The id of the token that stands for a blank, or None where the model has none."""
        return next(_ids(self.backend, "[MASK]", "<mask>"), None)

    def feeds(self, texts: Sequence[str], truncate: bool = False) -> dict[str, npt.NDArray[np.int64]]:
        """One batch: input name -> int64 [len(texts), longest], padded on the right, mask 0 at padding.

        A text of more tokens than the model takes raises `UsageError`, or is cut with `truncate`.
        """
        for text in texts:
            check_unicode(text)
            check_words(text)
        if self.truncation is not None and truncate:
            self.backend.enable_truncation(self.truncation)
        else:
            self.backend.no_truncation()
        encodings = self.backend.encode_batch(list(texts))
        for text, encoding in zip(texts, encodings, strict=True):
            if self.max_length is not None and (tokens := sum(encoding.attention_mask)) > self.max_length:
                raise UsageError(
                    f"text of {tokens} tokens, the model takes at most {self.max_length}: {text[:40]!r}…. "
                    "Split it, or add --truncate."
                )
        return {
            name: np.array([getattr(encoding, COLUMNS[name]) for encoding in encodings], dtype=np.int64)
            for name in self.inputs
        }

    def batches(
        self, texts: Sequence[str], batch_size: int, truncate: bool = False
    ) -> Iterator[dict[str, npt.NDArray[np.int64]]]:
        """Consecutive batches of at most `batch_size` texts."""
        for start in range(0, len(texts), batch_size):
            yield self.feeds(texts[start : start + batch_size], truncate)


def read_backend(bundle: Bundle) -> Backend:
    """The tokenizer of `bundle` as the library has it, without padding and truncation: for one text at a time.

    Raises `BundleError` when there is none.
    """
    return _read(_path(bundle))[0]


def check_unicode(text: str) -> None:
    """Raise `UsageError` for bytes that were not UTF-8 and that Python let through as lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"text that is not Unicode: {text[:40]!a}. Give it as UTF-8.") from error


def check_words(text: str) -> None:
    """Raise `UsageError` for a word, or spaces, of more than `LONGEST_WORD` characters.

    A tokenizer takes some 200 bytes of memory for each character of a word, and some microseconds.
    """
    if len(text) <= LONGEST_WORD:
        return
    longest = max((len(word.group()) for word in WORDS.finditer(text)), default=0)
    if longest > LONGEST_WORD:
        raise UsageError(
            f"text with {longest} characters in a row that are all or none of them spaces, expected at most "
            f"{LONGEST_WORD}. Break them up, or leave them out."
        )


def _path(bundle: Bundle) -> Path:
    if TOKENIZER not in bundle.manifest.files:
        raise BundleError(
            f"bundle {bundle.path}: holds no {TOKENIZER}, so it takes arrays, not text. "
            "Export it from a folder that has its tokenizer."
        )
    return bundle.path / TOKENIZER


def _padding_tokens(bundle: Bundle) -> tuple[str | None, int | None]:
    """The padding token that the files beside the tokenizer name, and the model's `pad_token_id`."""
    named = special_tokens({**read_object(bundle, SPECIAL_TOKENS), **read_object(bundle, CONFIGURATION)})
    number = read_object(bundle, MODEL_CONFIGURATION).get("pad_token_id")
    return named.get("pad_token"), number if isinstance(number, int) and number >= 0 else None


def _ids(backend: Backend, *tokens: str | int | None) -> Iterator[int]:
    """The ids of those of `tokens` that the vocabulary has; a number is an id already."""
    for token in tokens:
        number = backend.token_to_id(token) if isinstance(token, str) else token
        if number is not None:
            yield int(number)


def _read(path: Path) -> tuple[Backend, Mapping[str, Any], int | None]:
    """The tokenizer, which neither pads nor cuts, how the file asks to pad, and to how many tokens it asks to cut.

    It has shown that it can encode and decode. Raises `BundleError`.
    """
    from tokenizers import Tokenizer as Backend

    try:
        with _without_panics():
            backend = Backend.from_file(str(path))
            padding, truncation = backend.padding or {}, backend.truncation or {}
            backend.no_padding()
            backend.no_truncation()
            for text in ("", TRIAL):
                backend.decode(backend.encode(text).ids)
    except BaseException as error:  # the library raises bare Exception, and where its Rust panics something beyond that
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        reason = one_line(error, 200)
        raise BundleError(f"{path}: not a readable tokenizer ({reason}). Re-export the bundle.") from error
    return backend, padding, truncation.get("max_length")


@contextmanager
def _without_panics() -> Iterator[None]:
    """Keep from standard error what Rust writes there, many lines, before it raises."""
    try:
        kept = os.dup(2)
    except OSError:  # it is closed
        yield
        return
    if sys.stderr is not None:
        sys.stderr.flush()
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    os.close(nothing)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
