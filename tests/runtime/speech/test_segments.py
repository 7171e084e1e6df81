"""Segments of a transcript, and subtitles of them."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from intaglio.runtime.speech.segments import MAX_CHARACTERS, MAX_SECONDS, PAUSE, Segment, segments, srt, vtt
from intaglio.runtime.speech.transcript import Word


def spoken(*words: tuple[str, float, float]) -> list[Word]:
    return [Word(text, start, end, 1.0) for text, start, end in words]


def test_pause_starts_a_segment() -> None:
    found = segments(spoken(("one", 0.1, 0.4), ("two", 0.5, 0.8), ("three", 1.5, 2.0)))
    assert found == [Segment("one two", 0.1, 0.8), Segment("three", 1.5, 2.0)]


def test_empty_transcript_has_no_segments() -> None:
    assert segments([]) == []
    assert (srt([]), vtt([])) == ("", "WEBVTT\n\n")


@given(
    st.lists(
        st.tuples(st.integers(1, 30), st.floats(0, 1), st.floats(0.01, 2)),  # letters, pause before, length
        max_size=60,
    )
)
def test_segments_hold_all_words_and_fit_subtitles(rows: list[tuple[int, float, float]]) -> None:
    words, now = [], 0.0
    for letters, pause, length in rows:
        words.append(Word("a" * letters, now + pause, now + pause + length, 1.0))
        now += pause + length
    found = segments(words)
    assert " ".join(each.text for each in found) == " ".join(word.text for word in words)
    for each in found:
        if " " in each.text:
            assert len(each.text) <= MAX_CHARACTERS
            assert each.end - each.start <= MAX_SECONDS
    for one, other in pairwise(found):
        both = one.text + " " + other.text.split(" ")[0]
        last = next(word for word in words if word.start == other.start)
        assert last.start - one.end >= PAUSE or len(both) > MAX_CHARACTERS or last.end - one.start > MAX_SECONDS


def test_subtitles_format_hours_and_escape_markup() -> None:
    found = [Segment("a < b & c", 3599.9996, 7325.25)]
    assert srt(found) == "1\n01:00:00,000 --> 02:02:05,250\na < b & c\n\n"
    assert vtt(found) == "WEBVTT\n\n01:00:00.000 --> 02:02:05.250\na &lt; b &amp; c\n\n"
