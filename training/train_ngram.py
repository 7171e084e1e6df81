"""The verb `train_ngram`: a language model of words, for the beam search of speech recognisers."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import msgspec

from intaglio.runtime.speech.ngram_estimate import estimate


class TrainedNgram(msgspec.Struct):
    """The result of `train_ngram`."""

    language_model: str
    ngrams: list[int]  # of one word, of two words, and so on
    seconds: float


def train_ngram(text: str | Path, output: str | Path, order: int = 3, force: bool = False) -> TrainedNgram:
    """Estimate an n-gram model of `order` words from a UTF-8 text, one sentence per line, as the ARPA file `output`.

    Interpolated Kneser-Ney, as `intaglio.runtime.speech.ngram_estimate`. Write the words as the recogniser does: case,
    no punctuation. Raises `UsageError` for a text without words, and for an output that exists (without `force`).
    """
    began = time.monotonic()
    estimate(text, output, order, force)
    with Path(output).open(encoding="utf-8") as file:
        header = itertools.takewhile(str.strip, file)  # up to the first empty line
        counts = [int(line.partition("=")[2]) for line in header if line.startswith("ngram ")]
    return TrainedNgram(str(output), counts, round(time.monotonic() - began, 3))
