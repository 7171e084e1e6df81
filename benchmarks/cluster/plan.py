"""The work of `gptq` on a LLaMA, in the stages that the executor gets: products to compute and bytes to move.

All sizes follow from the shape of the model, so that a plan can be made for a model that no machine here holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.shared.random_llama import Shape
from intaglio.graph_passes.calibration.second_moments import column_parts
from intaglio.graph_passes.calibration.stream import PRODUCTS
from intaglio.graph_passes.weights.row_blocks import WEIGHTS

FLOAT = 4  # bytes


@dataclass(frozen=True)
class Text:
    """The calibration text: batches of so many sequences of `length` tokens."""

    batches: int
    sequences: int
    length: int

    @property
    def tokens(self) -> int:
        """Tokens of a batch."""
        return self.sequences * self.length


@dataclass(frozen=True)
class Work:
    """A stage of equal tasks. `size` is the width of the matrices, or the bytes of the weights of a stretch.

    `operations` of a task; `sent` and `received`: its bytes; `shared`: bytes that each worker gets once.
    """

    function: str
    size: int
    tasks: int
    operations: int
    sent: int
    received: int
    shared: int


def plan(model: Shape, text: Text, most: int = PRODUCTS) -> Iterator[Work]:
    """Yield the stages in their order. `most`: products of an activation that are computed where its batch is run."""
    tokens, hidden, wide, narrow = text.tokens, model.hidden, model.feed_forward, model.key_value
    row, mask, angles = FLOAT * tokens * hidden, tokens * text.length, FLOAT * tokens * model.head
    ids = 16 * tokens

    def stretch(
        weights: int, sent: int, received: int, width: int = 0, looked_up: bool = False, attention: int = 0
    ) -> Iterator[Work]:
        operations = 0 if looked_up else 2 * tokens * weights + attention
        weights *= FLOAT
        parts = [(part.stop - part.start, width - part.start) for part in column_parts(width)] if width else []
        numbers = sum(columns * rest for columns, rest in parts)
        if together := width * width <= most:
            operations += 2 * tokens * numbers
            received += FLOAT * numbers
        yield Work("run_batch", weights, text.batches, operations, sent, received, weights)
        if not together:
            sent, received = (FLOAT * each // len(parts) for each in (tokens * sum(r for _, r in parts), numbers))
            operations = 2 * tokens * numbers // len(parts)
            yield Work("products_of", width, text.batches * len(parts), operations, sent, received, 0)

    def rounds(width: int, heights: Sequence[int]) -> Iterator[Work]:
        for number, height in enumerate(heights):
            rows = min(height, max(1, WEIGHTS // width))
            tasks, shared = -(-height // rows), 0 if number else FLOAT * width * width
            rows = height // tasks
            yield Work("rounded_rows", width, tasks, rows * width * width, FLOAT * rows * width, rows * width, shared)

    yield from stretch(model.vocabulary * hidden, ids + mask, 2 * row + 2 * angles + mask, hidden, looked_up=True)
    for layer in range(model.layers):
        if layer:
            yield from stretch(hidden * wide, row + FLOAT * tokens * wide, 2 * row, hidden)
        yield from rounds(hidden, [hidden, narrow, narrow])
        cache = 2 * FLOAT * tokens * narrow  # empty keys and values
        first = 0 if layer else angles
        scores = 4 * tokens * text.length * hidden
        sent = row + cache + mask + angles + first
        yield from stretch(hidden * (hidden + 2 * narrow), sent, row + first, hidden, attention=scores)
        yield from rounds(hidden, [hidden])
        yield from stretch(hidden * hidden, 2 * row, 2 * row, hidden)
        yield from rounds(hidden, [wide, wide])
        yield from stretch(2 * hidden * wide, row, FLOAT * tokens * wide, wide)
        yield from rounds(wide, [hidden])
    yield from stretch(hidden * wide, row + FLOAT * tokens * wide, row, hidden)
    yield from rounds(hidden, [model.vocabulary])
