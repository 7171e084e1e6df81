"""Convert text to a bundle's inputs, with the tokenizer in the bundle."""

from __future__ import annotations

import re
import string
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from intaglio.bundle.bundle import Bundle
from intaglio.bundle.manifest import LONGEST, Prompt
from intaglio.bundle.text_records import PairTemplate, TokenVectors
from intaglio.errors import BundleError, ContextLengthError, UsageError
from intaglio.runtime.text.pair_texts import PairTexts
from intaglio.runtime.text.token_vectors import check_vectors, filled_up, places
from intaglio.runtime.text.tokenizer_config import (
    CONFIGURATION,
    MODEL_CONFIGURATION,
    SPECIAL_TOKENS,
    read_object,
    special_tokens,
)
from intaglio.runtime.text.tokenizer_file import read_tokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

TOKENIZER = "tokenizer.json"
LONGEST_WORD = 1 << 20  # characters
SHORT_TEXT = 1 << 16  # characters that are tokenized in some milliseconds
WORDS = re.compile(r"\S+|\s+")

POOLING_MASK = "pooling_mask"  # the input that is 0 at the tokens of a prompt, which pooling leaves out
MASK = "attention_mask"  # the input that is 0 at padding
COLUMNS = ("input_ids", MASK, "token_type_ids", POOLING_MASK)  # the inputs that a tokenizer returns

NO_PROMPT = Prompt("")


class Pair(NamedTuple):
    """Two texts that a model reads together, such as a query and a document."""

    first: str
    second: str


class TokenSequence(NamedTuple):
    """One text as the model reads it: special tokens included, no padding."""

    ids: Sequence[int]
    type_ids: Sequence[int]
    excluded: int = 0  # its first tokens, of a prompt, that pooling leaves out
    unattended: int = 0  # its last tokens, which a query was filled up with, and no token attends to
    vectors: Sequence[int] = ()  # places of its tokens with a vector, of a model that returns one for each
    limit: int | None = None  # its maximum tokens, where that is not the model's


class Tokenizer:
    """Converts sentences into padded batches of `input_ids`, `attention_mask` and, if needed, type ids.

    The padding and truncation settings of a tokenizer.json reflect how its author used it: only the padding token is
    used, and the truncation length if no other is given.
    """

    def __init__(
        self,
        path: Path,
        inputs: Sequence[str],
        max_length: int | None,
        truncation: int | None = None,
        pad: Sequence[str | int | None] = (),
        named: Mapping[str, str] = MappingProxyType({}),
        pair: PairTemplate | None = None,
        vectors: TokenVectors | None = None,
    ):
        """`path` of a tokenizer.json, the model's input names, its maximum tokens, and a lower one for texts.

        `pad`: tokens or ids; the first known one is the padding token if the file has none; else [PAD], <pad>, or id 0.
        `named`: special tokens by their names, such as "cls_token". `pair`, `vectors`: of the manifest.
        """
        self.backend, padding, cut, self._direction = read_tokenizer(path)
        if unknown := [name for name in inputs if name not in COLUMNS]:
            raise BundleError(
                f"the model needs {', '.join(unknown)}, which a tokenizer does not return. Give arrays instead."
            )
        self.inputs = tuple(inputs)
        self.max_length = min((length for length in (truncation, max_length) if length is not None), default=None)
        self.truncation = self.max_length if self.max_length is not None else cut
        self.pad_token_id = next(_ids(self.backend, padding.get("pad_id"), *pad, "[PAD]", "<pad>", 0))
        self.cls_token_id = next(_ids(self.backend, named.get("cls_token"), "[CLS]", "<s>"), None)
        word: str | None = named.get("unk_token") or getattr(self.backend.model, "unk_token", None)
        self.unknown_token_id = next(_ids(self.backend, word), None)
        self._vectors = vectors
        self._pair = PairTexts(pair, self.backend) if pair else None
        self._padding = {"input_ids": self.pad_token_id, "token_type_ids": padding.get("pad_type_id", 0)}

    @classmethod
    def open(cls, bundle: Bundle) -> Tokenizer:
        """The tokenizer of `bundle`. Raises `BundleError` if it has none."""
        path = _path(bundle)
        sequence = bundle.manifest.axes.get("sequence")
        names = [spec.name for spec in bundle.manifest.inputs]
        maximum = sequence.maximum if sequence else None
        named = _named_tokens(bundle)
        number = read_object(bundle, MODEL_CONFIGURATION).get("pad_token_id")
        pad = named.get("pad_token"), number if isinstance(number, int) and 0 <= number <= LONGEST else None
        check_vectors(bundle.manifest.vectors, bundle.path)
        texts = bundle.manifest.pair, bundle.manifest.vectors
        return cls(path, names, maximum, bundle.manifest.truncation, pad, named, *texts)

    @property
    def mask_token_id(self) -> int | None:
        """The id of the mask token, or None if the model has none."""
        return next(_ids(self.backend, "[MASK]", "<mask>"), None)

    def feeds(self, texts: Sequence[str | Pair], truncate: bool = False) -> dict[str, npt.NDArray[np.int64]]:
        """One batch: input name -> int64 [len(texts), longest], padded on the right, mask 0 at padding.

        A text longer than the model's limit raises `UsageError`, or is truncated with `truncate`.
        """
        sequences = self.encode(texts, truncate)
        for text, sequence in zip(texts, sequences, strict=True):
            self.check_length(text, sequence)
        return self.pad(sequences)

    def encode(
        self, texts: Sequence[str | Pair], truncate: bool = False, prompt: Prompt = NO_PROMPT
    ) -> list[TokenSequence]:
        """The tokens of each text after `prompt`, of any length. Not for several threads at a time.

        `truncate` shortens the longer text of a pair first, and the end of a pair that is read as one text, of which
        the template's own end is kept. Raises `UsageError` for a text that is not Unicode, or with a word that is too
        long for a tokenizer, and for one without a query if the model reads pairs as one text.
        """
        for text in texts:
            for part in text if isinstance(text, Pair) else (text,):
                check_unicode(part)
                check_words(part)
        pair = PairTexts(prompt.pair, self.backend) if prompt.pair else self._pair
        given = [_given(text, prompt, pair) for text in texts]
        query = self._vectors is not None and prompt.query
        limit = (self._vectors.query_length if self._vectors and query else self.truncation) if truncate else None
        if limit is None:
            self.backend.no_truncation()
        else:
            self.backend.enable_truncation(limit, direction=self._direction)
        sequences = [
            TokenSequence(each.ids, each.type_ids, prompt.excluded_tokens)
            for each in self.backend.encode_batch(given, add_special_tokens=pair is None)
        ]
        if self._vectors is not None:
            return [self._with_vectors(each, self._vectors, query) for each in sequences]
        if pair is None or limit is None:
            return sequences
        return [each._replace(ids=pair.with_end(each.ids, limit)) for each in sequences]

    def _with_vectors(self, sequence: TokenSequence, settings: TokenVectors, query: bool) -> TokenSequence:
        """The same tokens, filled up if they are a short query, with the places of those that have a vector."""
        ids = filled_up(sequence.ids, settings, query)
        added = len(ids) - len(sequence.ids)
        types = [*sequence.type_ids, *[self._padding["token_type_ids"]] * added]
        vectors, limit = places(ids, settings, query), settings.query_length if query else None
        return TokenSequence(ids, types, 0, 0 if settings.attends else added, vectors, limit)

    def check_length(self, text: str | Pair, sequence: TokenSequence) -> None:
        """Raise `ContextLengthError` for a text or a pair of more tokens than the model takes."""
        limit = self.max_length if sequence.limit is None else sequence.limit
        if limit is not None and len(sequence.ids) > limit:
            what, shown = ("pair", max(text, key=len)) if isinstance(text, Pair) else ("text", text)
            raise ContextLengthError(
                f"{what} of {len(sequence.ids)} tokens, the model takes at most {limit}: {shown[:40]!r}…. "
                "Split it, or shorten it."
            )

    def pad(
        self, sequences: Sequence[TokenSequence], step: int = 1, least: int = 0
    ) -> dict[str, npt.NDArray[np.int64]]:
        """One batch: input name -> int64 [len(sequences), length], padded on the right, mask 0 at padding.

        The length equals the longest sequence's, and is at least `least`, rounded up to a multiple of `step` as far as
        the model's limit allows it.
        """
        longest = max((len(sequence.ids) for sequence in sequences), default=0)
        length = -(-max(longest, least) // step) * step
        if self.max_length is not None:
            length = max(longest, min(length, self.max_length))
        shape = len(sequences), length
        feeds = {name: np.full(shape, self._padding.get(name, 0), dtype=np.int64) for name in self.inputs}
        for row, sequence in enumerate(sequences):
            columns: dict[str, Sequence[int] | int] = {
                "input_ids": sequence.ids,
                MASK: 1,
                "token_type_ids": sequence.type_ids,
                POOLING_MASK: 1,
            }
            for name, array in feeds.items():
                array[row, : len(sequence.ids)] = columns[name]
            if sequence.unattended and MASK in feeds:
                feeds[MASK][row, len(sequence.ids) - sequence.unattended :] = 0
            if POOLING_MASK in feeds:
                feeds[POOLING_MASK][row, : sequence.excluded] = 0
        return feeds

    def batches(
        self, texts: Sequence[str | Pair], batch_size: int, truncate: bool = False
    ) -> Iterator[dict[str, npt.NDArray[np.int64]]]:
        """Consecutive batches of at most `batch_size` texts."""
        for start in range(0, len(texts), batch_size):
            yield self.feeds(texts[start : start + batch_size], truncate)


def _given(text: str | Pair, prompt: Prompt, pair: PairTexts | None) -> str | tuple[str, str]:
    """What is tokenized of a text or a pair after `prompt`. Raises `UsageError` for a text that must be a pair."""
    if pair is not None:
        if isinstance(text, Pair):
            return pair(*text)
        raise UsageError(
            f"the model scores a query and a text together, and got one text: {text[:40]!r}. Give the "
            "query too, or a .jsonl file of queries with their documents."
        )
    return (prompt.text + text.first, text.second) if isinstance(text, Pair) else prompt.text + text


def read_backend(bundle: Bundle) -> Backend:
    """The library's tokenizer object for `bundle`, without padding and truncation, for single texts.

    Raises `BundleError` if it has none.
    """
    return read_tokenizer(_path(bundle))[0]


def check_unicode(text: str) -> None:
    """Raise `UsageError` for bytes that were not UTF-8, which Python represents as lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"text that is not Unicode: {text[:40]!a}. Give it as UTF-8.") from error


def longest_token(backend: Backend) -> int:
    """The number of characters of the longest token in the vocabulary."""
    return max(map(len, backend.get_vocab()), default=1)


def check_characters(text: str, tokens: int, longest: int) -> None:
    """Raise `ContextLengthError` for a text that cannot fit into `tokens` tokens of at most `longest` characters each.

    It takes little time, unlike tokenization, which returns the exact number for short texts. Spaces are not counted,
    as some tokenizers drop them.
    """
    if len(text) <= max(tokens * longest, SHORT_TEXT):
        return
    characters = len(text) - sum(map(text.count, string.whitespace))
    if characters > tokens * longest:
        raise ContextLengthError(
            f"prompt of {characters} characters without spaces: the model takes at most {tokens} tokens of at most "
            f"{longest} characters. Shorten the prompt."
        )


def check_words(text: str) -> None:
    """Raise `UsageError` for a word, or spaces, of more than `LONGEST_WORD` characters.

    A tokenizer takes some 200 bytes of memory for each character of a word, and some microseconds.
    """
    if len(text) <= LONGEST_WORD:
        return
    longest = max((len(word.group()) for word in WORDS.finditer(text)), default=0)
    if longest > LONGEST_WORD:
        raise UsageError(
            f"text with a word, or a run of spaces, of {longest} characters, expected at most {LONGEST_WORD}. "
            "Break it up, or leave it out."
        )


def _path(bundle: Bundle) -> Path:
    if TOKENIZER not in bundle.manifest.files:
        raise BundleError(
            f"bundle {bundle.path}: has no {TOKENIZER}, so it needs arrays, not text. "
            "Export it from a folder that has its tokenizer."
        )
    return bundle.path / TOKENIZER


def _named_tokens(bundle: Bundle) -> dict[str, str]:
    """The special tokens named in the files next to the tokenizer."""
    return special_tokens({**read_object(bundle, SPECIAL_TOKENS), **read_object(bundle, CONFIGURATION)})


def _ids(backend: Backend, *tokens: str | int | None) -> Iterator[int]:
    """The ids of those `tokens` that are in the vocabulary; an integer is already an id."""
    for token in tokens:
        number = backend.token_to_id(token) if isinstance(token, str) else token
        if number is not None:
            yield int(number)
