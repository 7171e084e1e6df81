"""The slots of a cache: the positions of a step's tokens in their sequences, and the slots they attend to."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from intaglio.bundle.bundle import Decoder
from intaglio.runtime.engines.memory import Buffer, Memory
from intaglio.runtime.sessions.draft_inputs import draft_rows
from intaglio.runtime.sessions.masks import Booleans, Integers, seen_among, seen_slots
from intaglio.runtime.sessions.step import DRAFT_POSITIONS
from intaglio.runtime.sessions.step_buffers import StepBuffers
from intaglio.runtime.sessions.token_tree import depths


class Slots:
    """Fills in positions and masks of steps, for a cache of `capacity` slots. Masks are copied within `memory`."""

    def __init__(self, memory: Memory, decoder: Decoder):
        self._memory, self._decoder = memory, decoder
        self._line: Buffer | None = None  # the buffer of the view below
        self.numbers: Integers = np.zeros(0, np.int64)  # 0, 1, ..., capacity - 1
        self._positions = self.numbers  # of the tokens in the slots
        self._seen: Buffer = np.zeros((0, 0), np.bool_)  # by the token in each slot, of a sequence without branches

    @property
    def capacity(self) -> int:
        """The number of slots."""
        return len(self.numbers)

    def resize(self, capacity: int) -> None:
        """Set the capacity."""
        self.release()
        self.numbers = np.arange(capacity)
        self._positions = np.minimum(self.numbers, self._decoder.max_positions - 1)  # beyond: dummy tokens
        self._line, self._seen = seen_slots(self._memory, capacity, self._decoder.sliding_window)

    def release(self) -> None:
        """Free the buffers in `memory`."""
        if self._line is not None:
            self._memory.release(self._line)
            self._line = None

    def place(self, buffers: StepBuffers, lengths: Sequence[int]) -> None:
        """Fill in steps whose new tokens follow the `lengths` [rows] cached tokens of each row, without branches."""
        tokens, copy = buffers.shape.tokens, self._memory.copy
        # An engine's run evicts Python's data from the processor caches: every call of NumPy counts here.
        for index, length in enumerate(lengths):
            buffers.write_start[index] = length
            buffers.positions[index] = self._positions[length : length + tokens]
            copy(buffers.mask_rows[index], self._seen[length : length + tokens])

    def branch(self, buffers: StepBuffers, index: int, length: int, parents: Sequence[int]) -> None:
        """Make the new tokens of a row a tree: each has its parent's position + 1 and attends to its ancestors only."""
        copy, count = self._memory.copy, len(parents)
        places = [length + depth for depth in depths(parents)]
        if self._decoder.sliding_window is not None:
            for token, place in enumerate(places):
                copy(buffers.attention_mask[index, token], self._seen[place])
        seen = seen_among(count, parents, self._decoder.sliding_window)
        copy(buffers.attention_mask[index, :count, length : length + count], seen)
        buffers.positions[index, :count] = places

    def place_drafts(self, buffers: StepBuffers, lengths: Sequence[int], trees: Sequence[Sequence[int]] | None) -> None:
        """Fill in the inputs of hidden transfer, after all others; `trees`: the parents of each row, or empty."""
        assert buffers.draft_mask is not None, "the graph does not draft"
        copy, tokens, window = self._memory.copy, buffers.shape.tokens, self._decoder.sliding_window
        seen: Booleans = np.tile(seen_among(tokens, None, window), (buffers.shape.rows, 1, 1))
        for index, parents in enumerate(trees or ()):
            if parents:
                seen[index, : len(parents)] = False
                seen[index, : len(parents), : len(parents)] = seen_among(len(parents), parents, window)
        stand, new = draft_rows(buffers.positions, seen, buffers.draft_indices, self._decoder.drafts, window)
        np.asarray(buffers.drafting[DRAFT_POSITIONS.name])[...] = stand
        for row, length in enumerate(lengths):
            if window is None:
                cached = max(length - 1, 0)  # the first slot is overwritten below
                copy(buffers.draft_mask[row], self._seen[cached : cached + 1])
            else:
                for index, place in enumerate(stand[row].tolist()):
                    copy(buffers.draft_mask[row, index], self._seen[place])
            copy(buffers.draft_mask[row, :, length : length + new.shape[2]], new[row])
