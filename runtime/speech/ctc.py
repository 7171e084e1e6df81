"""CTC decoding: the decoder interface, and the greedy decoder (Graves et al. 2006)."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from intaglio.errors import EngineError

LogProbs = npt.NDArray[np.floating]  # [frames, vocabulary], natural logarithms
ROUNDING = 0.01  # above 0 that a log-probability of a float16 engine may lie


class Token(NamedTuple):
    """A token in a recording."""

    token_id: int  # index in the vocabulary
    first: int  # frame
    last: int  # frame, included
    log_prob: float  # the highest of its frames, natural logarithm


class Decoder(Protocol):
    """Decodes a streamed recording; the result is independent of the piece boundaries."""

    def advance(self, log_probs: LogProbs) -> list[Token]:
        """Take the next frames; return the tokens that became final."""

    def pending(self) -> list[Token]:
        """The tokens after the final ones, not final yet."""

    def finish(self) -> list[Token]:
        """Return the last tokens, all final, at the end of the recording."""


class GreedyDecoder:
    """Takes the most probable token of each frame, joins repeats, and drops blanks."""

    def __init__(self, blank: int, vocabulary_size: int):
        self._blank = blank
        self._size = vocabulary_size
        self._frame = 0
        self._open: Token | None = None  # may continue in the next frame

    def advance(self, log_probs: LogProbs) -> list[Token]:
        """Take the next frames; return the tokens that became final: the next frame's token is another one."""
        check_log_probs(log_probs, self._size, self._frame)
        if not len(log_probs):
            return []
        best = log_probs.argmax(axis=1)
        peaks = np.minimum(log_probs.max(axis=1), 0.0)
        starts = np.flatnonzero(np.diff(best, prepend=-1))
        ends = np.append(starts[1:], len(best)) - 1
        highest = np.maximum.reduceat(peaks, starts)
        final: list[Token] = []
        for token, start, end, peak in zip(best[starts].tolist(), starts.tolist(), ends.tolist(), highest, strict=True):
            previous, self._open = self._open, None
            if previous is not None and previous.token_id == token:
                self._open = Token(token, previous.first, self._frame + end, max(previous.log_prob, float(peak)))
                continue
            if previous is not None:
                final.append(previous)
            if token != self._blank:
                self._open = Token(token, self._frame + start, self._frame + end, float(peak))
        self._frame += len(log_probs)
        return final

    def pending(self) -> list[Token]:
        """The token of the last frame, if it is not blank."""
        return [] if self._open is None else [self._open]

    def finish(self) -> list[Token]:
        """Return the last token, if one is open."""
        last, self._open = self.pending(), None
        return last


def greedy(log_probs: LogProbs, blank: int) -> list[Token]:
    """Decode a whole recording greedily: log_probs [frames, vocabulary] -> tokens in order."""
    decoder = GreedyDecoder(blank, log_probs.shape[-1])
    return decoder.advance(log_probs) + decoder.finish()


def check_log_probs(log_probs: LogProbs, size: int, first: int = 0) -> None:
    """Raise `EngineError` for invalid log-probabilities of `size` tokens; `first` is the first frame's number."""
    if log_probs.ndim != 2 or log_probs.shape[1] != size:
        raise EngineError(
            f"log_probs: got the shape {list(log_probs.shape)}, expected [frames, {size}], a column for each token of "
            "the vocabulary. Re-export the bundle."
        )
    highest = log_probs.max(axis=1)  # NaN if one is
    if not (allowed := (highest <= ROUNDING) & (highest > -np.inf)).all():
        frame = int(np.flatnonzero(~allowed)[0])
        raise EngineError(
            f"log_probs: NaN, above 0 or all of them -infinity at frame {first + frame}, expected log-probabilities. "
            "Check the engine with `intaglio validate`."
        )
