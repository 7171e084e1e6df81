"""The arrays that a step reads and writes, bound to the engine once per shape."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from intaglio.bundle.bundle import Decoder
from intaglio.bundle.image_records import EMBEDDINGS
from intaglio.errors import UsageError
from intaglio.runtime.engines.device_array import DeviceArray
from intaglio.runtime.engines.engine import Binding, Engine
from intaglio.runtime.engines.memory import Array, Buffer
from intaglio.runtime.sessions.device_logits import DeviceLogits, StepLogits, chooser_for
from intaglio.runtime.sessions.draft_inputs import drafted
from intaglio.runtime.sessions.step import (
    ATTENTION_MASK,
    BLOCKS_RUN,
    DRAFT_INDICES,
    DRAFT_LOGITS,
    DRAFT_MASK,
    DRAFT_POSITIONS,
    INPUT_IDS,
    LOGIT_INDICES,
    POSITIONS,
    WRITE_START,
)
from intaglio.runtime.sessions.token_chooser import TokenChooser

Integers = npt.NDArray[np.int64]
Booleans = npt.NDArray[np.bool_]

KEPT_SHAPES = 128  # bound shapes to keep: plain decoding needs one, drafts of all lengths and changing rows need more
KEPT_BYTES = 64 << 20  # of their masks, which are the largest of their arrays


class Shape(NamedTuple):
    """The properties shared by all steps that run on the same arrays."""

    first: int  # first row of the batch
    rows: int  # number of consecutive rows
    tokens: int
    wanted: int  # positions whose logits are returned
    drafting: int  # tokens to draft after
    attended: int  # capacity of the source buffers, in tokens
    images: int = 0  # image embeddings, at least 1 in a graph that reads images

    @property
    def slice(self) -> slice:
        """The rows."""
        return slice(self.first, self.first + self.rows)


@dataclass(frozen=True)
class StepBuffers:
    """The arrays of one shape: masks in the engine's memory, logits where tokens are chosen, the others on the host."""

    shape: Shape
    input_ids: Integers
    positions: Integers
    write_start: Integers
    logit_indices: Integers
    draft_indices: Integers
    attention_mask: Buffer
    mask_rows: list[Buffer]  # the same, one view per row
    drafting: Mapping[str, Buffer]  # additional inputs of hidden transfer, and `draft_logits`; empty without drafts
    draft_mask: Buffer | None
    image_embeddings: Array  # [images, width]
    logits: Buffer
    blocks_run: Integers
    binding: Binding

    @property
    def masks(self) -> list[Buffer]:
        """The buffers in the engine's memory that belong to this shape only."""
        return [self.attention_mask, *([self.draft_mask] if self.draft_mask is not None else [])]


class StepPool:
    """The bound shapes of steps; the least recently used ones are evicted."""

    def __init__(self, engine: Engine, decoder: Decoder, logits: str):
        """`logits`: the output that steps return."""
        self._engine, self._decoder, self._logits = engine, decoder, logits
        self._chooser: TokenChooser | None = None
        self._is_asked = False  # whether there can be one
        # The outputs on a device, which all shapes share: those of a step are read before the next.
        self._shared: dict[str, DeviceArray] = {}
        self._dtypes = {spec.name: spec.dtype for spec in (*engine.inputs, *engine.outputs)}
        self._kept: dict[Shape, StepBuffers] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def find(self, shape: Shape) -> StepBuffers | None:
        """The arrays of a shape, or None."""
        if (found := self._kept.pop(shape, None)) is not None:
            self._kept[shape] = found  # now the most recently used
        return found

    def make(self, shape: Shape, capacity: int, further: Mapping[str, Buffer]) -> StepBuffers:
        """Create arrays for a shape. `further`: additional buffers to bind, such as caches."""
        made = self._make(shape, capacity, further)
        while self._kept and (len(self._kept) >= KEPT_SHAPES or self._mask_bytes() > KEPT_BYTES):
            self._release(next(iter(self._kept)))
        self._kept[shape] = made
        return made

    def choose_on_device(self) -> None:
        """Keep logits where the engine computes from now on, if tokens can be chosen there."""
        if not self._is_asked:
            self._is_asked = True
            self._chooser = chooser_for(self._engine, self._logits)
            self.clear()  # shapes that are bound to the host's memory

    def run(self, buffers: StepBuffers) -> float:
        """Run a step, which overwrites the logits of the one before; return the seconds that it takes."""
        if self._chooser is not None:
            self._chooser.steps += 1
        began = time.perf_counter()
        buffers.binding.run()
        return time.perf_counter() - began

    def logits(self, output: Buffer, vocabulary: int) -> StepLogits:
        """The first `vocabulary` logits of each position in an output of the last step, [rows, ..., vocab]."""
        if self._chooser is None or not isinstance(output, DeviceArray):
            return np.asarray(output[..., :vocabulary], np.float32)
        return DeviceLogits(self._chooser, output[(*[slice(None)] * (output.ndim - 1), slice(vocabulary))])

    def close(self) -> None:
        """Release everything."""
        self.clear()
        if self._chooser is not None:
            self._chooser.close()

    def clear(self) -> None:
        """Release all shapes: the capacity has changed, or the engine is closed."""
        for shape in list(self._kept):
            self._release(shape)
        for held in self._shared.values():
            self._engine.memory.release(held)
        self._shared.clear()

    def _output(self, name: str, *shape: int) -> Buffer:
        """Memory for logits [*shape, vocab] that tokens are chosen from, where that is done."""
        shape, dtype = (*shape, self._decoder.vocab_size), self._dtypes[name]
        if self._chooser is None or dtype != "float32":
            return np.zeros(shape, dtype)
        held = self._shared.get(name)
        if held is None or held.shape[0] < prod(shape):
            if held is not None:
                self.clear()  # of all outputs, as shapes are bound to all of them
            held = self._shared[name] = self._chooser.memory.empty([prod(shape)], dtype)
        return DeviceArray.contiguous_at(held.address, shape, dtype)

    def _mask_bytes(self) -> int:
        return sum(mask.nbytes for kept in self._kept.values() for mask in kept.masks)

    def _release(self, shape: Shape) -> None:
        for mask in self._kept.pop(shape).masks:
            self._engine.memory.release(mask)

    def _make(self, shape: Shape, capacity: int, further: Mapping[str, Buffer]) -> StepBuffers:
        decoder, memory = self._decoder, self._engine.memory
        rows, tokens, wanted = shape.rows, shape.tokens, shape.wanted
        named: dict[str, Integers] = {
            INPUT_IDS.name: np.zeros((rows, tokens), np.int64),
            POSITIONS.name: np.zeros((rows, tokens), np.int64),
            WRITE_START.name: np.zeros(rows, np.int64),
            LOGIT_INDICES.name: np.zeros((rows, wanted), np.int64),
        }
        mask = memory.zeros((rows, tokens, capacity), np.bool_)
        logits = self._output(self._logits, rows, wanted)
        bound: dict[str, Buffer] = {**named, ATTENTION_MASK.name: mask, self._logits: logits, **further}
        draft_indices = np.zeros((rows, shape.drafting), np.int64)
        drafting: dict[str, Buffer] = {}
        draft_mask: Buffer | None = None
        if decoder.drafts:
            bound[DRAFT_INDICES.name] = draft_indices
            drafting[DRAFT_LOGITS] = self._output(DRAFT_LOGITS, rows, shape.drafting, decoder.drafts)
        if behind := drafted(decoder, shape.drafting):
            drafting[DRAFT_POSITIONS.name] = np.zeros((rows, behind), np.int64)
            draft_mask = bound[DRAFT_MASK.name] = memory.zeros((rows, behind, capacity), np.bool_)
        image_dtype = self._dtypes.get(EMBEDDINGS, "float32")
        image_embeddings: Array = np.zeros((shape.images, decoder.image_width), image_dtype)
        if shape.images:
            bound[EMBEDDINGS] = image_embeddings
        blocks_run = np.zeros((rows, wanted), np.int64)
        if decoder.saturation_exits:
            bound[BLOCKS_RUN.name] = blocks_run
        return StepBuffers(
            shape,
            **named,
            draft_indices=draft_indices,
            attention_mask=mask,
            mask_rows=[mask[row] for row in range(rows)],
            drafting=drafting,
            draft_mask=draft_mask,
            image_embeddings=image_embeddings,
            logits=logits,
            blocks_run=blocks_run,
            binding=self._engine.bind({**bound, **drafting}),
        )


def step_inputs(
    batch: int, input_ids: npt.ArrayLike, counts: npt.ArrayLike | None, logit_indices: npt.ArrayLike | None
) -> tuple[Integers, list[int], Integers]:
    """Ids [batch, tokens], the real ones of each row, and the tokens whose logits are returned [batch, wanted].

    By default all are real, and the last real one is wanted. Raises `UsageError` for other shapes and invalid numbers.
    """
    ids = np.asarray(input_ids, np.int64)
    if ids.ndim != 2 or ids.shape[0] != batch or ids.shape[1] < 1:
        raise UsageError(f"input_ids {ids.shape}: expected [{batch}, tokens].")
    tokens = ids.shape[1]
    real = np.full(batch, tokens, np.int64) if counts is None else np.asarray(counts, np.int64)
    if real.shape != (batch,) or real.min() < 0 or real.max() > tokens:
        raise UsageError(f"counts {real.tolist()}: expected {batch} from 0 to {tokens}.")
    wanted = np.maximum(real - 1, 0)[:, None] if logit_indices is None else np.asarray(logit_indices, np.int64)
    if wanted.ndim != 2 or wanted.shape[0] != batch or wanted.min() < 0 or wanted.max() >= tokens:
        raise UsageError(f"logit_indices {wanted.shape}: expected [{batch}, wanted] from 0 to {tokens - 1}.")
    return ids, real.tolist(), wanted
