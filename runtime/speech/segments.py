"""Segments of a transcript: words between pauses, short enough for a subtitle; as SubRip and WebVTT."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from intaglio.runtime.speech.transcript import Word

PAUSE = 0.6  # seconds without a word, after which a segment begins
MAX_CHARACTERS = 84  # of a segment: two lines of 42, as is usual for subtitles
MAX_SECONDS = 7.0  # of a segment: the usual maximum of a subtitle


class Segment(msgspec.Struct, frozen=True):
    """Consecutive words of a transcript."""

    text: str
    start: float  # seconds
    end: float  # seconds


def segments(words: Iterable[Word]) -> list[Segment]:
    """Split words, in order: after a pause, and before a segment would be too long for a subtitle.

    A word that alone is longer than the limits is a segment.
    """
    return [Segment(" ".join(word.text for word in group), group[0].start, group[-1].end) for group in _groups(words)]


def _groups(words: Iterable[Word]) -> Iterator[list[Word]]:
    group: list[Word] = []
    characters = -1  # of the group: its words, and a space between two
    for word in words:
        characters += 1 + len(word.text)
        if group and (
            word.start - group[-1].end >= PAUSE
            or characters > MAX_CHARACTERS
            or word.end - group[0].start > MAX_SECONDS
        ):
            yield group
            group, characters = [], len(word.text)
        group.append(word)
    if group:
        yield group


def srt(found: Sequence[Segment]) -> str:
    """SubRip subtitles."""
    return "".join(
        f"{number}\n{_time(each.start, ',')} --> {_time(each.end, ',')}\n{each.text}\n\n"
        for number, each in enumerate(found, 1)
    )


def vtt(found: Sequence[Segment]) -> str:
    """WebVTT subtitles (W3C); `&`, `<` and `>` are escaped."""
    cues = "".join(
        f"{_time(each.start, '.')} --> {_time(each.end, '.')}\n{html.escape(each.text, quote=False)}\n\n"
        for each in found
    )
    return f"WEBVTT\n\n{cues}"


def _time(seconds: float, point: str) -> str:
    milliseconds = round(1000 * seconds)
    minutes, rest = divmod(milliseconds, 60_000)
    return f"{minutes // 60:02}:{minutes % 60:02}:{rest // 1000:02}{point}{rest % 1000:03}"
