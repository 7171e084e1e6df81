"""The measure of a speech recogniser's task: its transcripts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from intaglio.validation.measures.measures import Array, Measure, floats


class Transcripts(Measure[tuple[int, int, int, int]]):
    """The transcripts of a speech recogniser, by greedy decoding.

    A token that is recognised one frame later changes the distributions of two frames, but not the transcript.
    """

    names = ("token_errors", "same_top")
    outputs = ("log_probs", "output_lengths")

    def __init__(self, blank: int):
        super().__init__()
        self._blank = blank

    def _part(
        self, feeds: Mapping[str, Array], actual: Mapping[str, Array], expected: Mapping[str, Array]
    ) -> tuple[int, int, int, int]:
        """The edits and tokens of the recordings, their equal frames and all.

        The frames of a recording are consecutive rows without padding.
        """
        found, wanted = (floats(each["log_probs"]).argmax(axis=-1).reshape(-1) for each in (actual, expected))
        broken = np.isnan(floats(actual["log_probs"])).any(axis=-1).reshape(-1)
        differing = tokens = 0
        ends = np.cumsum(expected["output_lengths"].astype(np.int64))[:-1]
        for ours, theirs in zip(np.split(found, ends), np.split(wanted, ends), strict=True):
            hypothesis, reference = (self._collapsed(each) for each in (ours, theirs))
            differing += edits(hypothesis, reference)
            tokens += len(reference)
        return differing, tokens, int(np.count_nonzero((found == wanted) & ~broken)), wanted.size

    def _collapsed(self, best: npt.NDArray[np.int64]) -> list[int]:
        """The tokens of the best one in each frame: repetitions are one, and blanks none."""
        begins = np.append(True, best[1:] != best[:-1])[: len(best)]
        return [token for token in best[begins].tolist() if token != self._blank]

    def _results(self, parts: Sequence[tuple[int, int, int, int]]) -> dict[str, float]:
        """See `LABELS`; without any token, an edit counts as one of one."""
        differing, tokens, same, frames = map(sum, zip(*parts, strict=True))
        return {"token_errors": differing / max(tokens, 1), "same_top": same / max(frames, 1)}


def edits(found: Sequence[int], wanted: Sequence[int]) -> int:
    """The least number of insertions, deletions and substitutions between two sequences (Levenshtein distance)."""
    row = list(range(len(wanted) + 1))
    for number, token in enumerate(found, 1):
        diagonal, row[0] = row[0], number
        for place, other in enumerate(wanted, 1):
            diagonal, row[place] = row[place], min(row[place] + 1, row[place - 1] + 1, diagonal + (token != other))
    return row[-1]
