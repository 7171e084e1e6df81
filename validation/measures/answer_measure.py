"""The measure of a model that answers questions: where its answers begin and end."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from intaglio.runtime.engines.engine import Array
from intaglio.runtime.text.inputs import MASK
from intaglio.validation.measures.measures import Labels, floats


class Answers(Labels):
    """The most probable first and last token of each text."""

    outputs = ("start_logits", "end_logits")

    def _part(
        self, feeds: Mapping[str, Array], actual: Mapping[str, Array], expected: Mapping[str, Array]
    ) -> tuple[int, int]:
        """The number of texts with the same two tokens, on both sides finite, and of all."""
        rows = [_by_text(feeds, outputs[name]) for name in self.outputs for outputs in (actual, expected)]
        same = texts = 0
        for start, other_start, end, other_end in zip(*rows, strict=True):
            equal = start.argmax() == other_start.argmax() and end.argmax() == other_end.argmax()
            same += bool(equal and np.isfinite(start).all() and np.isfinite(end).all())
            texts += 1
        return same, texts


def _by_text(feeds: Mapping[str, Array], found: Array) -> list[Array]:
    """The numbers of each text, which are consecutive without padding."""
    if found.ndim == 2:
        return list(floats(found))
    return np.split(floats(found), np.cumsum(np.count_nonzero(feeds[MASK], axis=1))[:-1])
