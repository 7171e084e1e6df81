"""The decoder session: the engine of a decoder's bundle, and the KV cache that it writes in place.

The cache is a pair of buffers per layer, [batch, kv_heads, capacity, head_dim], and a length for every row of the
batch: the slots that hold tokens. The slots beyond a row's length are masked, so a rollback only lowers a length, and
the rows of a batch may have different lengths. The capacity grows in steps, because it takes memory, and because ONNX
Runtime's attention reads all of it, which ours on a CPU does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import add
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import numpy.typing as npt

from intaglio.bundle.bundle import Bundle, Decoder
from intaglio.closing import Closing
from intaglio.errors import UsageError
from intaglio.networks.early_exit import NEVER
from intaglio.runtime.adapters.adapters import ADAPTER, ADAPTER_SCALE, Adapters
from intaglio.runtime.engines.engine import Engine
from intaglio.runtime.engines.memory import Buffer
from intaglio.runtime.engines.opening import open_engine
from intaglio.runtime.sessions.cached_rows import CachedRows, active_rows
from intaglio.runtime.sessions.chunks import PerRow, cut
from intaglio.runtime.sessions.device_logits import Logits, StepLogits
from intaglio.runtime.sessions.draft_inputs import drafted
from intaglio.runtime.sessions.image_table import ImageTable
from intaglio.runtime.sessions.key_value_cache import KeyValueCache
from intaglio.runtime.sessions.limits import StepLimits
from intaglio.runtime.sessions.slots import Slots
from intaglio.runtime.sessions.step import DRAFT_LOGITS, EXIT_THRESHOLDS, LOGITS, decoder_of, whole_outputs
from intaglio.runtime.sessions.step_buffers import Integers, Shape, StepBuffers, StepPool, step_inputs


class DecoderSession(CachedRows, Closing):
    """A decoder and its cache, for a batch of sequences, one per row. A context manager.

    `lengths` [batch] are the numbers of cached tokens of each row. A graph that drafts does so after some tokens of a
    step: `draft_logits[row]` [origins, drafts, vocab] holds those of the row's last step, on a GPU until the next. One
    with saturation exits uses the `exit_thresholds` [batch] of the rows, which may be changed in place;
    `blocks_run[row]` [positions wanted] holds those of the row's last step. `adapters` [batch] are the numbers of the
    rows' adapters, 0 for none, and `adapter_scales` [batch, 1, 1] the factors of their changes; both may be changed in
    place. `images` are those that prompts have. Not thread-safe.

    A step covers all rows from the first to the last with new tokens; rows between them get dummy tokens after their
    end. In an engine with caches of a fixed length, rows without new tokens are truncated if there is no space;
    the truncated tokens have to be appended again.
    """

    logits_name: ClassVar[str] = LOGITS  # the output that steps return

    def __init__(self, engine: Engine, decoder: Decoder, batch: int = 1, limit: int | None = None):
        """`limit`: maximum tokens of a sequence; by default, and at most, the model's positions."""
        if batch < 1:
            raise UsageError(f"batch {batch}: expected at least 1.")
        if limit is not None and not 1 <= limit <= decoder.max_positions:
            raise UsageError(f"limit of {limit} tokens: the model takes 1 to {decoder.max_positions}.")
        self.engine, self._limits = engine, StepLimits(engine, decoder)
        specs = {spec.name: spec for spec in engine.inputs}
        cache = KeyValueCache(engine.memory, decoder, batch, specs, self._limits.slots)
        super().__init__(cache, decoder, batch, self._limits.max_tokens(limit or decoder.max_positions))
        self.seconds = 0.0  # spent in the engine so far
        self.vocabulary = decoder.vocab_size  # logits to return; lower it to leave out padding
        self.draft_logits: list[StepLogits] = [np.zeros((0, decoder.drafts, decoder.vocab_size), np.float32)] * batch
        self.blocks_run: list[Integers] = [np.zeros(0, np.int64)] * batch
        self.exit_thresholds = np.full(batch, NEVER, np.float32)
        self._pool = StepPool(engine, decoder, self.logits_name)
        self._attended: dict[str, Buffer] = {}  # additional inputs of every step: thresholds, or an encoder's outputs
        if decoder.saturation_exits:
            self._attended[EXIT_THRESHOLDS.name] = self.exit_thresholds
        self.adapters, self.adapter_scales = np.zeros(batch, np.int32), np.ones((batch, 1, 1), np.float32)
        if engine.adapter_names:
            self._attended |= {ADAPTER.name: self.adapters, ADAPTER_SCALE.name: self.adapter_scales}
        self._attended_tokens = 0  # capacity of these buffers
        self.images = ImageTable(decoder.vocab_size, decoder.image_width)
        self._slots = Slots(engine.memory, decoder)
        self._version = 0  # of the cache that they are for
        if self._limits.slots is not None:
            self._reserve(self._limits.slots)

    @classmethod
    def open(
        cls,
        bundle: str | Path | Bundle,
        target: str = "ort-cpu",
        batch: int = 1,
        limit: int | None = None,
        threads: int | None = None,
        spinning: bool = True,
        adapters: Adapters | None = None,
        cache_bits: int | None = None,
    ) -> Self:
        """Open the decoder in `bundle`; `target` as in `open_engine`, `threads` and `spinning` for ONNX Runtime.

        `adapters`: those that rows may have. `cache_bits`: see `OnnxRuntimeEngine`. Raises `BundleError` if the bundle
        is not a decoder, `UsageError` for a limit beyond the model's, `SourceError` for adapters of another one.
        """
        opened = Bundle.open(bundle)
        decoder = decoder_of(opened)
        outputs = whole_outputs(decoder)
        engine = open_engine(opened, target, threads, spinning, outputs, adapters=adapters, cache_bits=cache_bits)
        try:
            return cls(engine, decoder, batch, limit)
        except BaseException:
            engine.close()
            raise

    def close(self) -> None:
        """Release the engine and the cache."""
        self._pool.close()
        self.cache.release()
        self._slots.release()
        self.engine.close()

    def prefill(self, prompts: PerRow) -> Logits:
        """Append a prompt (token ids) to every row; return the logits [batch, vocab] after it.

        Raises `UsageError` for an empty prompt, and for one that makes its sequence longer than the limit.
        """
        counts = [len(prompt) for prompt in prompts]
        if len(counts) != self.batch or not all(counts):
            raise UsageError(f"prompts of {counts} tokens: expected {self.batch}, each of at least 1 token.")
        return np.concatenate(self.append(prompts, [1] * self.batch))

    def append(
        self, new_tokens: PerRow, wanted: Sequence[int], trees: PerRow | None = None, origins: PerRow | None = None
    ) -> list[Logits]:
        """Append tokens to the rows (possibly none to some); return the logits [wanted, vocab] at the end of each row.

        new_tokens  per row
        wanted      per row, the number of logits, at most the number of its new tokens
        trees       per row, the parents of its new tokens, see `token_tree`; empty for a plain sequence
        origins     per row, with `trees`, the indices of the new tokens to draft after, for a graph that drafts; by
                    default the last

        Long inputs, except trees, are run in several steps. Raises `UsageError` as `step` does.
        """
        return [logits.copy() for logits in self._append_all(new_tokens, wanted, trees, origins)]

    def append_uncopied(
        self, new_tokens: PerRow, wanted: Sequence[int], trees: PerRow | None = None, origins: PerRow | None = None
    ) -> Sequence[StepLogits]:
        """The same, but the logits stay where the engine computes, if tokens can be chosen there, to the next step."""
        self._pool.choose_on_device()
        return self._append_all(new_tokens, wanted, trees, origins)

    def _append_all(
        self, new_tokens: PerRow, wanted: Sequence[int], trees: PerRow | None, origins: PerRow | None
    ) -> Sequence[StepLogits]:
        counts = [len(tokens) for tokens in new_tokens]
        self.check_lengths(counts)
        longest = max(counts)
        if longest == 1 or (longest and (trees or longest <= self._widest(counts))):
            return self._append(new_tokens, counts, wanted, trees, origins)
        return self._append_in_chunks(new_tokens, wanted)

    def _append_in_chunks(self, new_tokens: PerRow, wanted: Sequence[int]) -> list[Logits]:
        """Append sequences that are too long for one step: see `append`."""
        found: list[list[Logits]] = [[np.zeros((0, self.vocabulary), np.float32)] for _ in new_tokens]
        while longest := max(map(len, new_tokens)):
            width = min(longest, self._widest([*map(len, new_tokens)]))
            chunk, now, new_tokens, wanted = cut(new_tokens, wanted, width)
            for row, logits in enumerate(self._append(chunk, [*map(len, chunk)], now)):
                found[row].append(logits.copy())
        return [np.concatenate(parts) for parts in found]

    def _widest(self, counts: Sequence[int]) -> int:
        """The maximum tokens of a step in which every row gets `counts`; rows without tokens do not count."""
        return self._limits.widest(length for length, count in zip(self.lengths, counts, strict=True) if count)

    def max_tree_tokens(self, origins: int, row: int) -> int:
        """The maximum tokens of a tree in a step of `row`, at least 1; it drafts after at most `origins` of them.

        A step takes trees of several rows if each has space for the widest of them.
        """
        return self._limits.tree(self.lengths[row], origins)

    def _append(
        self,
        new_tokens: PerRow,
        counts: Sequence[int],
        wanted: Sequence[int],
        trees: PerRow | None = None,
        origins: PerRow | None = None,
    ) -> Sequence[StepLogits]:
        """One step, of the rows from the first to the last that get tokens: see `append`."""
        rows = active_rows(counts)
        drafting = max(1, *map(len, origins)) if origins else 1
        new_tokens, images = self.images.place(new_tokens)
        buffers = self._prepare(rows, counts, max(counts), max(1, *wanted), drafting, images)
        for index, row in enumerate(rows):
            tokens, count = new_tokens[row], counts[row]
            if count == 1:  # of the most frequent step; its index of logits can only be 0
                self.check_ids(tokens[0], tokens[0], len(images))
                buffers.input_ids[index, 0] = tokens[0]
                buffers.logit_indices[index, 0] = 0
            elif count:
                self.check_ids(min(tokens), max(tokens), len(images))
                buffers.input_ids[index, :count] = tokens
                buffers.logit_indices[index, : wanted[row]] = self._slots.numbers[count - wanted[row] : count]
            if trees and trees[row]:
                self._slots.branch(buffers, index, self.lengths[row], trees[row])
            if self.decoder.drafts:
                places = origins[row] if origins else ()
                buffers.draft_indices[index, : len(places) or 1] = places or max(count - 1, 0)
        logits = self._run(buffers, counts, trees)
        found = [logits[index, : wanted[row]] for index, row in enumerate(rows)]
        if len(found) == self.batch:
            return found
        none = np.zeros((0, self.vocabulary), np.float32)
        return [*[none] * rows.start, *found, *[none] * (self.batch - rows.stop)]

    def step(
        self,
        input_ids: npt.ArrayLike,
        counts: npt.ArrayLike | None = None,
        logit_indices: npt.ArrayLike | None = None,
    ) -> Logits:
        """Append tokens to all rows; return a copy of the logits, float32 [batch, positions wanted, vocab].

        input_ids      [batch, tokens]; the first `counts` of each row are real, the rest any valid ids
        counts         [batch], 0 to tokens; by default all are real. `lengths` increase by them
        logit_indices  [batch, positions wanted], the tokens whose logits are returned; by default the last real one

        Raises `UsageError` for a sequence longer than the limit and for invalid ids, `EngineError`.
        """
        ids, real, wanted = step_inputs(self.batch, input_ids, counts, logit_indices)
        self.check_ids(ids.min(), ids.max())
        self.check_lengths(real)
        shape = ids.shape[1], wanted.shape[1], wanted.shape[1]
        buffers = self._prepare(range(self.batch), real, *shape, self.images.none)
        buffers.input_ids[:] = ids
        buffers.logit_indices[:] = wanted
        buffers.draft_indices[:] = wanted
        return self._run(buffers, real).copy()

    def _prepare(
        self, rows: range, counts: Sequence[int], tokens: int, wanted: int, drafting: int, images: Logits
    ) -> StepBuffers:
        """The buffers of a step of `tokens` for `rows`, with space in the cache: for sequences without branches.

        `counts`: of all rows, how many of them are real. `drafting`: after so many, where the graph drafts.
        """
        behind = tokens + drafted(self.decoder, drafting)
        if self._limits.slots is not None:
            for row in rows:
                if not counts[row]:
                    self.truncate(row, max(self._limits.slots - behind, 0))
        lengths = self.lengths[rows.start : rows.stop]
        self._reserve(max(lengths) + behind)
        shape = Shape(rows.start, len(rows), tokens, wanted, drafting, self._attended_tokens, len(images))
        buffers = self._pool.find(shape) or self._pool.make(shape, self.capacity, self._shared_buffers(shape))
        if shape.images:
            buffers.image_embeddings[:] = images
        self._slots.place(buffers, lengths)
        return buffers

    def _shared_buffers(self, shape: Shape) -> dict[str, Buffer]:
        """The buffers of a step that are shared with other shapes."""
        attended = {name: buffer[shape.slice] for name, buffer in self._attended.items()}
        return {**self.cache.bound(shape.slice, len(self.decoder.layer_caches)), **attended}

    def _run(self, buffers: StepBuffers, counts: Sequence[int], trees: PerRow | None = None) -> StepLogits:
        """Run a step that adds `counts` [batch] tokens; return the logits of its rows, [rows, wanted, vocab].

        The next step overwrites them.
        """
        if buffers.draft_mask is not None:
            rows = buffers.shape.slice
            self._slots.place_drafts(buffers, self.lengths[rows], trees[rows] if trees else None)
        self.seconds += self._pool.run(buffers)
        self.lengths = [*map(add, self.lengths, counts)]
        if self.decoder.saturation_exits:
            self.blocks_run[buffers.shape.slice] = buffers.blocks_run.copy()
        if self.decoder.drafts:
            drafts = self._pool.logits(buffers.drafting[DRAFT_LOGITS], self.vocabulary)
            drafts = drafts.copy() if isinstance(drafts, np.ndarray) else drafts
            self.draft_logits[buffers.shape.slice] = [drafts[row] for row in range(len(drafts))]
        return self._pool.logits(buffers.logits, self.vocabulary)

    def _reserve(self, slots: int) -> None:
        """Ensure `slots` slots in every row; the cache's content is copied."""
        if slots > self.cache.capacity:
            self._limits.check_slots(slots)
            self._pool.clear()  # these are bound to the old caches
            self.cache.reserve(slots)
        if self.cache.version != self._version:
            self._pool.clear()
            self._slots.resize(self.cache.capacity)
            self._version = self.cache.version

    def _attend(self, buffers: dict[str, Buffer], tokens: int) -> None:
        """Use `buffers` (by name) as additional inputs of the next steps; `tokens` is the capacity of the buffers."""
        self._attended, self._attended_tokens = buffers, tokens
