"""Scores of texts: from 0 to 100, and each text against its own reference."""

from __future__ import annotations

import pytest

from intaglio.errors import UsageError
from intaglio.validation.measures.text_quality import text_quality

TEXTS = ["the cat sat on the mat today", "a dog ran through the old garden gate"]


def test_equal_texts_score_100_and_unrelated_ones_0() -> None:
    equal = text_quality(TEXTS, TEXTS)
    assert (equal.rouge_1, equal.rouge_2, equal.rouge_l) == (100, 100, 100)
    assert equal.bleu == pytest.approx(100)
    unrelated = text_quality(["xyz"] * 2, TEXTS)
    assert (unrelated.rouge_1, unrelated.rouge_l) == (0, 0)
    assert unrelated.bleu < 1


def test_word_order_counts_for_bleu_and_rouge_l_but_not_rouge_1() -> None:
    turned = text_quality([" ".join(reversed(text.split())) for text in TEXTS], TEXTS)
    assert turned.rouge_1 == 100
    assert turned.rouge_l < 60
    assert turned.bleu < 30


def test_mismatched_references_are_refused() -> None:
    assert text_quality(TEXTS[::-1], TEXTS).rouge_l < 40


@pytest.mark.parametrize(("texts", "references"), [([], []), (["a"], ["a", "b"])])
def test_empty_list_is_refused(texts: list[str], references: list[str]) -> None:
    with pytest.raises(UsageError, match="at least 1"):
        text_quality(texts, references)
