"""Transcripts: words of tokens, with times and confidences."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from intaglio.runtime.speech.ctc import Token
from intaglio.runtime.speech.transcript import Transcript, Word, WordReader, transcript
from intaglio.runtime.speech.vocabulary import Vocabulary

PIECES = Vocabulary(["▁the", "s", "▁cat", "▁", "a▁b", "<blank>"], 5, "▁")
FRAME = 0.04


def tokens(*ids: int) -> list[Token]:
    """Tokens of two frames each, every fifth frame, with log-probability -0.1, -0.2, ..."""
    return [Token(token, 5 * place, 5 * place + 1, -0.1 * (place + 1)) for place, token in enumerate(ids)]


def test_word_times_span_its_frames() -> None:
    found = transcript(tokens(0, 2, 1), PIECES, FRAME, 10.0)
    assert found.text == "the cats"
    assert found.words == [
        Word("the", 0.0, 0.08, pytest.approx(math.exp(-0.1), abs=1e-4)),
        Word("cats", 0.2, 0.48, pytest.approx(math.exp(-0.25), abs=1e-4)),
    ]
    assert [(token.text, token.start, token.end) for token in found.tokens] == [
        ("▁the", 0.0, 0.08),
        ("▁cat", 0.2, 0.28),
        ("s", 0.4, 0.48),
    ]
    assert found.seconds == 10.0


def test_token_with_an_inner_mark_belongs_to_both_words() -> None:
    found = transcript(tokens(0, 4, 1), PIECES, FRAME, 10.0)
    assert [(word.text, word.start, word.end) for word in found.words] == [("thea", 0.0, 0.28), ("bs", 0.2, 0.48)]


def test_marks_alone_are_not_words() -> None:
    found = transcript(tokens(3, 0, 3, 3, 1), PIECES, FRAME, 10.0)
    assert [(word.text, word.start, word.end) for word in found.words] == [("the", 0.2, 0.28), ("s", 0.8, 0.88)]


def test_times_are_within_the_audio() -> None:
    found = transcript(tokens(0, 2), PIECES, FRAME, 0.25)
    assert found.words[-1].end == found.tokens[-1].end == 0.25


def test_silence_has_an_empty_transcript() -> None:
    assert transcript([], PIECES, FRAME, 3.0) == Transcript("", [], [], 3.0)


def test_transcript_round_trips_through_json() -> None:
    found = transcript(tokens(0, 2, 1), PIECES, FRAME, 10.0)
    assert msgspec.json.decode(msgspec.json.encode(found), type=Transcript) == found


@given(st.lists(st.integers(0, 4), max_size=12), st.integers(0, 12))
def test_words_are_independent_of_token_pieces(ids: list[int], cut: int) -> None:
    whole = transcript(tokens(*ids), PIECES, FRAME, math.inf)
    assert whole.text == PIECES.text(ids)
    reader = WordReader(PIECES, FRAME)
    words = reader.add(tokens(*ids)[:cut])
    shown = " ".join([*(word.text for word in words), reader.preview(tokens(*ids)[cut:])]).strip()
    assert shown == whole.text
    words += reader.add(tokens(*ids)[cut:])
    assert words + reader.close() == whole.words
    assert reader.close() == []
