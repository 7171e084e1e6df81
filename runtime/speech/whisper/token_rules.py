"""Which tokens may follow those that are written of a window: suppressed tokens, and the rules of times."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from intaglio.bundle.bundle import Encoder, Transcriber

Scores = npt.NDArray[np.float32]


class TokenRules:
    """The rules of Whisper (Radford et al. 2022, section 2.3), as its original code has them.

    Without `timestamps` only the suppressed tokens apply.
    """

    def __init__(self, encoder: Encoder, transcriber: Transcriber, end: int, timestamps: bool):
        """`end`: the token that ends a text; all special tokens, and then the times, follow it."""
        self._suppressed = list(encoder.suppressed_tokens)
        self._at_begin = list(transcriber.begin_suppressed)
        self._no_timestamps, self._end = transcriber.no_timestamps, end
        self._latest = transcriber.max_initial_timestamp
        self._timestamps = timestamps

    @property
    def first_time(self) -> int:
        """The token of 0 seconds."""
        return self._no_timestamps + 1

    def apply(self, logits: Scores, written: Sequence[int]) -> Scores:
        """The `logits` [vocabulary] after the tokens `written` of a window, -infinity for those that may not follow."""
        scores = logits.copy()
        if not written:
            scores[self._at_begin] = -np.inf
        scores[self._suppressed] = -np.inf
        if self._timestamps:
            self._apply_times(scores, written)
        return scores

    def _apply_times(self, scores: Scores, written: Sequence[int]) -> None:
        """Times come in pairs, except for the last; they never decrease, and a text begins with one."""
        first = self.first_time
        scores[self._no_timestamps] = -np.inf
        times = [token for token in written if token >= first]
        after_time = bool(written) and written[-1] >= first
        after_pair = after_time and (len(written) < 2 or written[-2] >= first)
        if after_pair:
            scores[first:] = -np.inf
        elif after_time:
            scores[: self._end] = -np.inf
        if times:
            repeats = after_time and not after_pair  # the end of a segment is the beginning of the next
            scores[first : times[-1] + (not repeats)] = -np.inf
        if not written:
            scores[:first] = -np.inf
            if self._latest is not None:
                scores[first + self._latest + 1 :] = -np.inf
        logs = log_softmax(scores)
        if np.logaddexp.reduce(logs[first:]) > logs[:first].max():  # together likelier than any token of a text
            scores[:first] = -np.inf


def log_softmax(scores: Scores) -> Scores:
    """The logarithms of the softmax of `scores` [vocabulary]."""
    shifted = scores - scores.max()
    found: Scores = shifted - np.log(np.exp(shifted).sum())
    return found
