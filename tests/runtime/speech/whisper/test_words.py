"""Words, medians and paths equal those of transformers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tiny_whispers import write_tokenizer

from intaglio.runtime.speech.whisper.alignment import median_filtered, token_ends, warping_path
from intaglio.runtime.speech.whisper.words import split_words
from intaglio.runtime.text.tokenizer import Tokenizer

TEXTS = [
    " Hello, world! It's 5 o'clock (almost) -- \"right\"?",
    "no space first. ¿Qué? ¡Sí! “Äpfel”…",
    " 今日は、良い天気。",
    "  two  spaces ,",
    " ( [ {",
    "...",
    " ",
    " 🙂 face 🙂🙂",
]


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """Ours, and that of transformers."""
    import transformers

    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder)
    ours = Tokenizer(folder / "tokenizer.json", ["input_ids"], None).backend
    return ours, transformers.WhisperTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize(("code", "language"), [("en", "english"), ("ja", "japanese"), (None, None), ("zh", "chinese")])
def test_words_equal_the_library(
    text: str, code: str | None, language: str | None, tokenizers: tuple[Any, Any]
) -> None:
    from transformers.models.whisper.tokenization_whisper import _combine_tokens_into_words

    ours, theirs = tokenizers
    tokens = ours.encode(text, add_special_tokens=False).ids
    for given in (tokens, tokens[:-1], tokens[1:]):  # also parts of characters
        words, _, indices = _combine_tokens_into_words(theirs, given, language)
        found = split_words(ours, given, code)
        assert [(word.text, list(range(word.first, word.end))) for word in found] == list(
            zip(words, indices, strict=True)
        )


@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (9, 1), (5, 40), (40, 30)])
def test_paths_equal_the_library(shape: tuple[int, int]) -> None:
    from transformers.models.whisper.generation_whisper import _dynamic_time_warping

    random = np.random.default_rng(0)
    for costs in (random.normal(size=shape), random.integers(0, 2, shape).astype(np.float64)):
        for found, wanted in zip(warping_path(costs), _dynamic_time_warping(costs), strict=True):
            np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("positions", [1, 3, 4, 50])
@pytest.mark.parametrize("width", [1, 3, 7])
def test_medians_equal_the_library(positions: int, width: int) -> None:
    import torch
    from transformers.models.whisper.generation_whisper import _median_filter

    values = np.random.default_rng(0).normal(size=(2, 3, positions)).astype(np.float32)
    np.testing.assert_array_equal(median_filtered(values, width), _median_filter(torch.tensor(values), width).numpy())


def test_equal_weights_have_ends() -> None:
    """One token, or heads that attend everywhere alike, have no deviation to divide by."""
    assert token_ends(np.full((2, 1, 5), 0.2, np.float32), 7, 2) == [0, 0]
    ends = token_ends(np.full((2, 3, 5), 0.2, np.float32), 7, 3)
    assert len(ends) == 3 and ends == sorted(ends)
