"""Cut the tokens of a window into segments at their times, and find where the next window begins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

STRIDE = 2  # frames of features of a position of the encoder, and of a token of time


class TimedTokens(NamedTuple):
    """The tokens of a segment, and its times in tokens of time, from the beginning of the window."""

    tokens: list[int]
    start: int
    end: int
    before: int  # tokens of the window before its own


def cut(tokens: Sequence[int], first_time: int, frames: int) -> tuple[list[TimedTokens], int]:
    """The segments of a window of `frames`, and the frames until the next window begins.

    A segment ends where two tokens of time follow each other. After the last of these, a text was cut by the end of the
    window, and is written again with the next one; a single time at the end says that nothing follows.
    """
    is_time = [token >= first_time for token in tokens]
    single_ending = is_time[-2:] == [False, True]
    ends = [place + 1 for place in range(len(tokens) - 1) if is_time[place] and is_time[place + 1]]
    if not ends:
        end = frames // STRIDE
        times = [token - first_time for token in tokens if token >= first_time]
        if times and times[-1] != 0:
            end = times[-1]
        return [TimedTokens(list(tokens), 0, end, 0)], frames
    if single_ending:
        ends.append(len(tokens))
    else:
        ends[-1] += 1  # with the time at which the next one begins
    segments, first = [], 0
    for end in ends:
        part = list(tokens[first:end])
        last = part[-1] if end != ends[-1] or single_ending else part[-2]
        segments.append(TimedTokens(part, part[0] - first_time, last - first_time, first))
        first = end
    return segments, frames if single_ending else (tokens[first - 2] - first_time) * STRIDE
