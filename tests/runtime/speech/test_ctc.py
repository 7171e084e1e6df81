"""Greedy CTC decoding, by definition and in pieces."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from intaglio.errors import EngineError
from intaglio.runtime.speech.ctc import GreedyDecoder, LogProbs, Token, greedy

BLANK = 0


def of_best(path: list[int], size: int = 3, probability: float = 0.9) -> LogProbs:
    """Log-probabilities in which these tokens are the best ones, frame by frame."""
    rest = (1 - probability) / (size - 1)
    return np.log(np.where(np.arange(size) == np.array(path)[:, None], probability, rest)).astype(np.float32)


def by_definition(path: list[int]) -> list[tuple[int, int, int]]:
    """Token, first and last frame of the runs of a path, blanks left out."""
    runs = [(token, list(group)) for token, group in itertools.groupby(enumerate(path), key=lambda pair: pair[1])]
    return [(token, group[0][0], group[-1][0]) for token, group in runs if token != BLANK]


@given(st.lists(st.integers(0, 2), max_size=20), st.data())
def test_repeats_are_joined_and_blanks_dropped_for_any_pieces(path: list[int], data: st.DataObject) -> None:
    log_probs = of_best(path) if path else np.zeros((0, 3), np.float32)
    found = greedy(log_probs, BLANK)
    assert [token[:3] for token in found] == by_definition(path)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(path)), max_size=5)))
    decoder, pieces = GreedyDecoder(BLANK, 3), []
    for start, end in itertools.pairwise([0, *cuts, len(path)]):
        pieces += decoder.advance(log_probs[start:end])
        assert pieces + decoder.pending() == greedy(log_probs[:end], BLANK)
    assert pieces + decoder.finish() == found
    assert decoder.finish() == []


def test_token_after_a_blank_is_a_new_token() -> None:
    assert [token.token_id for token in greedy(of_best([1, 1, 0, 1]), BLANK)] == [1, 1]


def test_token_log_prob_is_its_maximum_across_pieces() -> None:
    log_probs = np.log(np.array([[0.4, 0.6], [0.1, 0.9], [0.3, 0.7]]))
    decoder = GreedyDecoder(BLANK, 2)
    assert [*decoder.advance(log_probs[:1]), *decoder.advance(log_probs[1:])] == []
    assert decoder.finish() == [Token(1, 0, 2, pytest.approx(np.log(0.9)))]


def test_confidence_is_at_most_one() -> None:
    assert greedy(np.array([[-9.0, 0.004]], np.float16), BLANK) == [Token(1, 0, 0, 0.0)]


@pytest.mark.parametrize(
    ("log_probs", "message"),
    [
        (np.zeros((4, 5), np.float32), r"shape \[4, 5\], expected \[frames, 3\]"),
        (np.zeros((1, 4, 3), np.float32), "shape"),
        (np.array([[-1, -1, -1], [-1, np.nan, -1]]), "at frame 7"),
        (np.array([[-1, -1, -1], [0.5, 3, 1.0]]), "at frame 7"),
        (np.array([[-1, -1, -1], [-np.inf, -np.inf, -np.inf]]), "at frame 7"),
    ],
)
def test_invalid_log_probs_raise_engine_error(log_probs: LogProbs, message: str) -> None:
    decoder = GreedyDecoder(BLANK, 3)
    decoder.advance(of_best([0] * 6))
    with pytest.raises(EngineError, match=message) as refused:
        decoder.advance(log_probs)
    assert "\n" not in str(refused.value)
