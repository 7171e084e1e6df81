"""Similarities of texts: the cosines of their embeddings."""

from __future__ import annotations

from collections.abc import Callable
from itertools import repeat
from pathlib import Path

import numpy as np
import pytest

from intaglio.errors import UsageError
from intaglio.exporters import export
from intaglio.runtime import run, similarity
from intaglio.runtime.text.similarities import MOST

TEXTS = ["A cat sits on the mat.", "Stock markets fell on Monday.", "A kitten rests on a rug."]


@pytest.mark.proof
def test_cosines_equal_those_of_the_embeddings(make_checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    checkpoint = make_checkpoint(
        "BertModel", sentence={"pooling_mode_mean_tokens": True, "normalize": False}, num_hidden_layers=1
    )
    export(str(checkpoint), tmp_path / "bundle", check=False)
    found = similarity(tmp_path / "bundle", TEXTS)
    vectors = [np.asarray(result.embedding, np.float64) for result in run(tmp_path / "bundle", TEXTS)]
    assert found.texts == TEXTS
    assert max(np.linalg.norm(vector) for vector in vectors) > 1.1  # so that a plain product would differ
    for row, first in zip(found.similarity, vectors, strict=True):
        expected = [first @ second / np.linalg.norm(first) / np.linalg.norm(second) for second in vectors]
        np.testing.assert_allclose(row, expected, atol=1e-6)


def test_pairs_are_unique_and_sorted_by_similarity(minilm_bundle: Path) -> None:
    pairs = list(similarity(minilm_bundle, TEXTS).pairs())
    assert [(first, second) for _, first, second in pairs] == [
        (TEXTS[0], TEXTS[2]),
        (TEXTS[1], TEXTS[2]),
        (TEXTS[0], TEXTS[1]),
    ]
    assert pairs[0][0] > 0.6


def test_too_many_texts_are_rejected(tiny_bundle: Path) -> None:
    with pytest.raises(UsageError, match=f"2 to {MOST} texts, got more than {MOST}"):
        similarity(tiny_bundle, repeat("a"))


def test_single_text_is_rejected(tiny_bundle: Path) -> None:
    with pytest.raises(UsageError, match=f"2 to {MOST} texts, got 1"):
        similarity(tiny_bundle, ["a"])


def test_decoder_is_rejected(tiny_decoder: Path) -> None:
    with pytest.raises(UsageError, match=r"task of bundle .* is 'generate', expected embed or encode"):
        similarity(tiny_decoder, TEXTS)
