"""When the tokens of a text were spoken: an additional pass over the text, and the path through its attention."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from intaglio.bundle.bundle import Bundle, Decoder
from intaglio.runtime.engines.engine import Engine, EngineRunner
from intaglio.runtime.engines.opening import open_engine
from intaglio.runtime.sessions.step import ALIGNMENT, empty_caches, step_feeds
from intaglio.runtime.speech.whisper.session import SpeechSession
from intaglio.runtime.speech.whisper_options import parts_of

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]

BOTH, ROW, COLUMN = 0, 1, 2  # what a step of a path advances; median filter and path are those of transformers


def alignment_weights(
    engine: Engine, decoder: Decoder, session: SpeechSession, tokens: Sequence[int], row: int = 0
) -> Floats:
    """How much `tokens`, of a whole text, attend to the window of a row of `session`, [heads, tokens, positions].

    `engine`: the decoder's graph, reduced to `ALIGNMENT`.
    """
    feeds = step_feeds(decoder, np.array([tokens], np.int64))
    feeds |= empty_caches(engine.inputs, 1, len(tokens))
    for spec in engine.inputs:
        if spec.name not in feeds:
            feeds[spec.name] = session.cross_kv(spec.name)[row : row + 1].astype(spec.dtype)
    weights: Floats = engine.run({spec.name: feeds[spec.name] for spec in engine.inputs})[ALIGNMENT][0]
    return weights.astype(np.float32, copy=False)


class Aligner(EngineRunner):
    """The decoder's graph as far as it is needed for times of words, opened beside the one that writes."""

    def __init__(self, bundle: Bundle, target: str, threads: int | None):
        """`bundle` has alignment heads; the rest as in `open_engine`."""
        _, self._transcriber = parts_of(bundle)
        assert bundle.manifest.decoder is not None
        self._decoder = bundle.manifest.decoder
        self.engine = open_engine(bundle, target, threads, spinning=False, outputs=[ALIGNMENT])

    def ends(self, session: SpeechSession, before: Sequence[int], text: Sequence[int], frames: int) -> list[int]:
        """The position of the encoder at which each token of `text` ends, and the next one begins.

        `before`: the tokens before it. `frames` of the window are of the recording, the rest is padding. The
        positions equal transformers'; the last token of a text that was cut by the decoder's length ends where the one
        before it does.
        """
        fed = text[: self._decoder.max_positions - len(before) - 1]
        if not fed:
            return [0] * len(text)
        weights = alignment_weights(self.engine, self._decoder, session, [*before, *fed])
        return token_ends(weights[:, len(before) :, : max(frames // 2, 1)], self._transcriber.median_filter, len(text))


def token_ends(weights: Floats, width: int, count: int) -> list[int]:
    """The positions at which `count` tokens end, whose first ones have `weights` [heads, tokens, positions].

    The weights of each head are normalised over the tokens, and filtered over `width` positions; their mean over the
    heads is the score of a token at a position. The path through all tokens and positions has the largest sum of these.
    """
    spread = weights.std(1, keepdims=True)
    scores = np.divide(weights - weights.mean(1, keepdims=True), spread, out=np.zeros_like(weights), where=spread > 0)
    tokens, positions = warping_path(-median_filtered(scores, width).mean(0).astype(np.float64))
    first = np.flatnonzero(np.diff(tokens, prepend=-1))
    ends: npt.NDArray[np.int64] = positions[first]
    return [*map(int, ends), *[int(ends[-1])] * (count - len(ends))]


def median_filtered(values: Floats, width: int) -> Floats:
    """The medians of `values` [..., positions] over `width` positions, an odd number; the edges are mirrored.

    Values of at most width // 2 positions are returned unchanged.
    """
    half = width // 2
    if values.shape[-1] <= half:
        return values
    padded = np.pad(values, [(0, 0)] * (values.ndim - 1) + [(half, half)], mode="reflect")
    windows = np.lib.stride_tricks.sliding_window_view(padded, width, -1)
    found: Floats = np.partition(windows, half, -1)[..., half]  # in a third of the time of np.median
    return found


def warping_path(costs: npt.NDArray[np.float64]) -> tuple[Integers, Integers]:
    """The rows and columns of the cheapest path from the first to the last element of `costs` [rows, columns].

    Each step advances by a row, a column, or both; of equal ones, by a column.
    """
    rows, columns = costs.shape
    total = np.full((rows + 1, columns + 1), np.inf, np.float32)
    total[0, 0] = 0
    steps = np.full((rows + 1, columns + 1), COLUMN, np.int8)
    steps[1:, 0] = ROW
    for place in range(rows + columns - 1):  # along a diagonal, whose elements depend on earlier ones only
        row = np.arange(max(place - columns + 1, 0), min(place, rows - 1) + 1) + 1
        column = place + 2 - row
        both, down, right = total[row - 1, column - 1], total[row - 1, column], total[row, column - 1]
        by_both, by_row = (both < down) & (both < right), (down < both) & (down < right)
        steps[row, column] = np.where(by_both, BOTH, np.where(by_row, ROW, COLUMN))
        total[row, column] = costs[row - 1, column - 1] + np.where(by_both, both, np.where(by_row, down, right))
    path = []
    row_index, column_index = rows, columns
    while row_index > 0 or column_index > 0:
        path.append((row_index - 1, column_index - 1))
        step = steps[row_index, column_index]
        row_index -= step != COLUMN
        column_index -= step != ROW
    found = np.array(path[::-1], np.int64)
    return found[:, 0], found[:, 1]
