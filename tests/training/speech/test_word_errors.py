from __future__ import annotations

import pytest

from intaglio.training.speech.word_errors import by_group, word_errors


def test_errors_are_counted_by_kind_over_all_words() -> None:
    found = word_errors(["one two three", "four five six seven eight"], ["one too three", "four six seven eight nine"])
    assert (found.utterances, found.words) == (2, 8)
    assert (found.substitutions, found.deletions, found.insertions) == (1, 1, 1)
    assert found.wer == pytest.approx(100 * 3 / 8)


def test_empty_hypotheses_have_an_error_rate_of_100_and_long_ones_more() -> None:
    assert word_errors(["one two"], [""]).wer == 100
    assert word_errors(["one"], ["one one one"]).wer == 200


def test_groups_are_counted_separately() -> None:
    found = by_group(["b", "a", "b"], ["one", "two", "three"], ["one", "too", "tree"])
    assert list(found) == ["a", "b"]
    assert (found["a"].wer, found["b"].wer) == (100, 50)


def test_transcripts_without_a_group_are_in_none() -> None:
    assert list(by_group(["", "one", ""], ["a", "b", "c"], ["a", "b", "x"])) == ["one"]
