"""The candidates of a beam search: the highest scores, forbidden repetitions, and the rows of the caches."""

from __future__ import annotations

import numpy as np
import pytest
from covering import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from intaglio.errors import UsageError
from intaglio.runtime.sampling.beams import BeamOptions, Search, highest, log_softmax, repeating

VOCABULARY = 7
END = 6


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=20), st.data())
def test_highest_are_the_first_of_a_stable_sort(scores: list[int], data: st.DataObject) -> None:
    count = data.draw(st.integers(1, len(scores)))
    order = sorted(range(len(scores)), key=lambda place: -scores[place])
    assert highest(np.array(scores, np.float32), count).tolist() == order[:count]


@given(st.lists(st.integers(0, 2), max_size=12), st.integers(1, 4))
def test_repeating_tokens_are_those_that_complete_a_known_sequence(tokens: list[int], length: int) -> None:
    known = {tuple(tokens[place : place + length]) for place in range(len(tokens) - length + 1)}
    for token in range(3):
        last = (*tokens, token)[-length:]
        assert (token in repeating(tokens, length)) == (len(last) == length and last in known)


@settings(max_examples=examples(200))
@given(st.integers(1, 5), st.integers(0, 2**32 - 1), st.integers(0, 3), st.booleans())
def test_rows_hold_the_beams_that_they_are_given(beams: int, seed: int, ngram: int, early: bool) -> None:
    """After the copies, the row of each beam holds its tokens but the last; scores are sums of log-probabilities."""
    random = np.random.default_rng(seed)
    options = BeamOptions(beams, max_new_tokens=12, no_repeat_ngram=ngram, early_stopping=early)
    search = Search(options, [1, 2], 2, [END], 3, [0])
    caches = {row: [1, 2] for row in search.rows}
    while not search.ended:
        logits = random.normal(size=(beams, VOCABULARY)).astype(np.float32)
        probabilities = log_softmax(logits)
        # The beams begin with equal tokens, of which only the first counts.
        before = {
            tuple(beam.tokens): (beam.score, probabilities[place]) for place, beam in [*enumerate(search.beams)][::-1]
        }
        for source, row in search.advance(logits):
            caches[row] = list(caches[source])
        for beam in search.beams:
            assert caches[beam.row] == beam.tokens[:-1]
            score, following = before[tuple(beam.tokens[:-1])]
            if beam.score > -1e8:
                np.testing.assert_allclose(beam.score, score + following[beam.tokens[-1]], rtol=1e-5)
        assert {beam.row for beam in search.beams} == set(search.rows)
        for beam in search.beams:
            caches[beam.row].append(beam.tokens[-1])
    assert search.best.finished
    assert 0 not in search.best.tokens


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beams": 0}, "beams 0: expected at least 1"),
        ({"max_new_tokens": 0}, "max new tokens 0"),
        ({"min_new_tokens": -1}, "min new tokens -1"),
        ({"no_repeat_ngram": -1}, "no repeat ngram -1"),
        ({"length_penalty": float("nan")}, "length penalty nan: expected a finite number"),
    ],
)
def test_invalid_option_is_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        BeamOptions(**options)  # type: ignore[arg-type]
