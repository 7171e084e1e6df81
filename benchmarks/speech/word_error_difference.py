"""The difference of two recognisers' word error rates on the same utterances, and how sure it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from intaglio.training.speech.word_errors import word_errors

RESAMPLED = 10_000  # times
INTERVAL = (2.5, 97.5)  # percentiles


class Difference(NamedTuple):
    """Points of word error rate, the second recogniser's less the first one's, with its 95 % interval."""

    points: float
    low: float
    high: float


def difference(references: Sequence[str], first: Sequence[str], second: Sequence[str], seed: int = 0) -> Difference:
    """Compare the transcripts `first` and `second` of the same `references`.

    The interval is the bootstrap's: the sentences are drawn again, with repetition, and both rates are computed of the
    same ones. Utterances of one sentence, by several voices, stay together, as their errors are alike.
    """
    sentences = {text: place for place, text in enumerate(dict.fromkeys(references))}
    words, excess = np.zeros(len(sentences)), np.zeros(len(sentences))
    for text, one, other in zip(references, first, second, strict=True):
        words[sentences[text]] += len(text.split())
        excess[sentences[text]] += _errors(text, other) - _errors(text, one)
    random = np.random.default_rng(seed)
    drawn = random.multinomial(len(words), np.full(len(words), 1 / len(words)), RESAMPLED)
    low, high = np.percentile(100 * (drawn @ excess) / (drawn @ words), INTERVAL)
    return Difference(100 * float(excess.sum() / words.sum()), float(low), float(high))


def _errors(reference: str, transcript: str) -> int:
    found = word_errors([reference], [transcript])
    return found.substitutions + found.deletions + found.insertions
