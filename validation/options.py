"""The options of `validate` as types: what is compared, and the bounds.

They match those of the command line; a test holds both against the functions that take them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TypedDict


class BoundOptions(TypedDict, total=False):
    """Bounds that replace the defaults in `intaglio.accuracy.default_bounds`."""

    bound: Mapping[str, float] | None  # by measure; the others are short forms
    max_abs: float | None
    min_cosine: float | None
    max_perplexity_rise: float | None  # percent


class OutputOptions(TypedDict, total=False):
    """How all outputs are compared."""

    bisect: bool  # search for the first layer beyond its bound
    samples: int  # of the inputs, the first ones
    batch_size: int


class TextOptions(TypedDict, total=False):
    """A text on which a generative model is scored, see `intaglio.validation.scores.perplexity`.

    It is judged by its difference from the bundle `against`, and without it measured but not judged. An encoder-decoder
    is always scored: without a file on the output of the bundle `against`.
    """

    perplexity: str | Path | None  # a UTF-8 file
    context: int | None  # tokens of a window
    stride: int | None  # tokens from one window to the next
    cache_bits: int | None  # of the bundle's cached keys and values, 8 or 4; None: as the graph has them


class RecordingOptions(TypedDict, total=False):
    """Recordings on which a speech recogniser's word errors are measured, see `intaglio.validation.scores.word_errors`.

    They are judged by their difference from those of the bundle `against`, or by the bounds on "wer" and "cer".
    """

    wer: str | Path | None  # a list of recordings and their texts
    beam: int | None  # this and the following: see `intaglio.run`
    language_model: str | Path | None
    language_model_weight: float | None
    word_bonus: float | None


class ValidationOptions(BoundOptions, OutputOptions, TextOptions, RecordingOptions, total=False):
    """Every option of `validate`."""
