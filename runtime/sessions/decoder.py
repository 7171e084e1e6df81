"""The decoder session: an engine of a decoder's bundle, and the cache of keys and values that it writes in place.

The cache is a pair of buffers a layer, [batch, kv_heads, capacity, head_dim], and a length for every row of the batch:
the slots that hold tokens. What lies beyond a row's length is of no meaning and never seen, so that rolling back is
lowering a length, and rows of a batch may be of different lengths. The capacity grows in steps, as attention on a CPU
reads all of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import add
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from intaglio.bundle import Axis, Bundle, Decoder
from intaglio.early_exit import NEVER
from intaglio.errors import UsageError
from intaglio.runtime.engines.engine import Array, Engine, open_engine, zeros
from intaglio.runtime.engines.onnxruntime_engine import OnnxRuntimeEngine
from intaglio.runtime.sessions.causal_mask import seen_slots
from intaglio.runtime.sessions.decoder_graph import (
    BLOCKS_RUN,
    DRAFT_LOGITS,
    EXIT_THRESHOLDS,
    LOGITS,
    decoder_of,
    needed_outputs,
)
from intaglio.runtime.sessions.draft_inputs import draft_feeds, drafted
from intaglio.runtime.sessions.token_tree import ancestors, depths

Integers = npt.NDArray[np.int64]
Booleans = npt.NDArray[np.bool_]
Logits = npt.NDArray[np.float32]

CAPACITY_STEP = 128  # slots by which a cache grows; a copy of all of it each time, a small part of so many steps
PREFILL_TOKENS = 512  # tokens of a prompt that are run at a time; bounds the memory that attention scores take
KEPT_SHAPES = 64  # shapes of a step whose buffers stay bound: one for plain decoding, more for drafts of any length


@dataclass(frozen=True)
class _Buffers:
    """The arrays that steps of one shape read and write, and what runs the engine on them."""

    input_ids: Integers
    positions: Integers
    attention_mask: Booleans
    write_start: Integers
    logit_indices: Integers
    draft_indices: Integers
    logits: Array
    drafting: Mapping[str, Array]  # the inputs with which a graph drafts, and its draft_logits; empty where it does not
    blocks_run: Integers
    run: Callable[[], None]


class DecoderSession:
    """A decoder and its cache, for `batch` texts at a time. A context manager.

    `lengths` [batch] are the tokens that the cache holds of each text. A graph that drafts does so after some of the
    tokens of a step: `draft_logits` [batch, origins, drafts, vocab] are those of the last one. A graph that stops
    computing saturated tokens does so beyond the `exit_thresholds` [batch] of the texts, which may be changed in place;
    `blocks_run` [batch, positions wanted] is of the last one. Not for use from several threads at once.
    """

    logits_name: ClassVar[str] = LOGITS  # the output that steps return

    def __init__(self, engine: Engine, decoder: Decoder, batch: int = 1, limit: int | None = None):
        """`limit`: the most tokens that a text may have; by default, and at most, the model's positions."""
        if batch < 1:
            raise UsageError(f"batch {batch}: expected at least 1.")
        if limit is not None and not 1 <= limit <= decoder.max_positions:
            raise UsageError(f"limit of {limit} tokens: the model takes 1 to {decoder.max_positions}.")
        self.engine = engine
        self.decoder = decoder
        self.batch = batch
        self.limit = limit or decoder.max_positions
        self.lengths = [0] * batch
        self.seconds = 0.0  # spent in the engine so far
        self.draft_logits: Logits = np.zeros((batch, 0, decoder.drafts, decoder.vocab_size), np.float32)
        self.vocabulary = decoder.vocab_size  # logits that are returned; lower it to leave out a padded end
        self._caches: dict[str, Array] = {}  # name after "past_" -> [batch, kv_heads, capacity, head_dim]
        self.exit_thresholds = np.full(batch, NEVER, np.float32)
        self.blocks_run: Integers = np.zeros((batch, 0), np.int64)
        self._attended: dict[str, Array] = {}  # what every step reads besides: thresholds, or an encoder's outputs
        if decoder.saturation_exits:
            self._attended[EXIT_THRESHOLDS] = self.exit_thresholds
        self._attended_tokens = 0  # for which they have room
        self._buffers: dict[tuple[int, ...], _Buffers] = {}  # by tokens, positions wanted, origins of drafts, attended
        self._dtypes = {spec.name: spec.dtype for spec in (*engine.inputs, *engine.outputs)}
        self._slots: Integers = np.zeros(0, np.int64)  # 0, 1, ..., capacity - 1
        self._positions: Integers = np.zeros(0, np.int64)  # of the tokens in the slots
        self._seen: Booleans = np.zeros((0, 0), np.bool_)  # by the token in each slot, of a text without branches
        self._most = engine.axes.get("capacity", Axis()).maximum  # slots that the engine takes; None: any number
        if self._most is not None:  # TensorRT's caches have one length
            self._allocate(self._most)
            self.limit = max(min(self.limit, self._most - drafted(decoder, 1)), 1)

    @classmethod
    def open(
        cls,
        bundle: str | Path | Bundle,
        target: str = "ort-cpu",
        batch: int = 1,
        limit: int | None = None,
        threads: int | None = None,
        spinning: bool = True,
    ) -> Self:
        """Open the decoder in `bundle`; `target` as of `open_engine`, `threads` and `spinning` for ONNX Runtime.

        Raises `BundleError` for a bundle that is no decoder, `UsageError` for a limit that the model cannot take.
        """
        opened = bundle if isinstance(bundle, Bundle) else Bundle.open(bundle)
        decoder = decoder_of(opened)
        engine = open_engine(opened, target, threads, spinning, needed_outputs(decoder))
        try:
            return cls(engine, decoder, batch, limit)
        except BaseException:
            engine.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the engine and the cache."""
        self._buffers.clear()
        self._caches.clear()
        self.engine.close()

    @property
    def capacity(self) -> int:
        """The slots that the cache has for each text."""
        return len(self._slots)

    def prefill(self, prompts: Sequence[Sequence[int]]) -> Logits:
        """Append a prompt (token ids) to every text of the batch; return the logits [batch, vocab] after it.

        Raises `UsageError` for an empty prompt, and for one that makes its text longer than the limit.
        """
        counts = [len(prompt) for prompt in prompts]
        if len(counts) != self.batch or not all(counts):
            raise UsageError(f"prompts of {counts} tokens: expected {self.batch}, each of at least 1 token.")
        return np.concatenate(self.append(prompts, [1] * self.batch))

    def append(
        self,
        texts: Sequence[Sequence[int]],
        wanted: Sequence[int],
        trees: Sequence[Sequence[int]] | None = None,
        origins: Sequence[Sequence[int]] | None = None,
    ) -> list[Logits]:
        """Append tokens to the texts, none to some; return the logits [wanted, vocab] after the last of each.

        texts   of each text of the batch its new tokens
        wanted  of each how many logits, at most as many as it has new tokens
        trees   of each the parents of its new tokens, see `token_tree`, and none where they follow each other
        origins of each, with `trees`, the places of the new tokens that a graph which drafts does so after; by default
                after the last

        Many tokens, but not those of trees, are run in pieces. Raises `UsageError` as `step` does.
        """
        counts = [len(tokens) for tokens in texts]
        self._check_lengths(counts)
        longest = max(counts)
        widest = longest if trees else min(longest, self._widest(counts))
        self._give_way(counts, widest + drafted(self.decoder, max(1, *map(len, origins)) if origins else 1))
        if longest and longest == widest:
            logits = self._append(texts, counts, wanted, trees, origins)
            return [logits[row, :count] for row, count in enumerate(wanted)]
        return self._append_in_pieces(texts, wanted)

    def _append_in_pieces(self, texts: Sequence[Sequence[int]], wanted: Sequence[int]) -> list[Logits]:
        """Append texts that are longer than one step takes: see `append`."""
        found: list[list[Logits]] = [[np.zeros((0, self.vocabulary), np.float32)] for _ in texts]
        while longest := max(map(len, texts)):
            width = min(longest, self._widest([*map(len, texts)]))
            cuts = [max(len(tokens) - longest + width, 0) for tokens in texts]  # all texts end in the last step
            pieces = [tokens[:cut] for tokens, cut in zip(texts, cuts, strict=True)]
            texts = [tokens[cut:] for tokens, cut in zip(texts, cuts, strict=True)]
            now = [max(count - len(rest), 0) for count, rest in zip(wanted, texts, strict=True)]
            wanted = [count - here for count, here in zip(wanted, now, strict=True)]
            logits = self._append(pieces, [*map(len, pieces)], now)
            for row, count in enumerate(now):
                found[row].append(logits[row, :count])
        return [np.concatenate(parts) for parts in found]

    def _widest(self, counts: Sequence[int]) -> int:
        """The most tokens of a step: what bounds the memory, what the engine takes, what fits after the longest text.

        A step is as wide as its widest row: what is not real of the others lies beyond their ends. `counts`: the new
        tokens of each row; rows without any give way.
        """
        widest = min(PREFILL_TOKENS, self.engine.axes.get("tokens", Axis()).maximum or PREFILL_TOKENS)
        if self._most is None:
            return widest
        longest = max((length for length, count in zip(self.lengths, counts, strict=True) if count), default=0)
        return min(widest, max(self._most - longest - drafted(self.decoder, 1), 1))

    def _give_way(self, counts: Sequence[int], width: int) -> None:
        """Shorten rows without new tokens in a cache of one length: a step also writes `width` slots behind their ends.

        What they lose is read again when it is needed.
        """
        if self._most is not None:
            for row, count in enumerate(counts):
                if not count:
                    self.truncate(row, max(self._most - width, 0))

    def tree_room(self, origins: int, row: int) -> int:
        """The most tokens of a tree that a step takes in `row`, at least 1; it drafts after at most `origins` of them.

        A step takes trees of several rows where each has room for the widest of them.
        """
        limits = [self.engine.axes.get(name, Axis()).maximum for name in ("tokens", "positions_wanted")]
        if self._most is not None:
            free, slots = self._most - self.lengths[row], drafted(self.decoder, 1)
            limits.append(max(free - slots * origins, free // (1 + slots)))  # the latter drafts after all of fewer
        return max(min((limit for limit in limits if limit is not None), default=PREFILL_TOKENS), 1)

    def _append(
        self,
        texts: Sequence[Sequence[int]],
        counts: Sequence[int],
        wanted: Sequence[int],
        trees: Sequence[Sequence[int]] | None = None,
        origins: Sequence[Sequence[int]] | None = None,
    ) -> Logits:
        """One step: see `append`. Of texts that want fewer logits than others there are meaningless ones at the end."""
        buffers = self._prepare(max(counts), max(1, *wanted), max(1, *map(len, origins)) if origins else 1)
        for row, (tokens, count, last) in enumerate(zip(texts, counts, wanted, strict=True)):
            if count:
                self._check_ids(min(tokens), max(tokens))
                buffers.input_ids[row, :count] = tokens
                buffers.logit_indices[row, :last] = self._slots[count - last : count]
        for row, parents in enumerate(trees or ()):
            if parents:
                self._branch(buffers, row, parents)
        if buffers.drafting:
            for row, (count, places) in enumerate(zip(counts, origins or [()] * self.batch, strict=True)):
                buffers.draft_indices[row, : len(places) or 1] = places or max(count - 1, 0)
        return self._run(buffers, counts)

    def step(
        self,
        input_ids: npt.ArrayLike,
        counts: npt.ArrayLike | None = None,
        positions: npt.ArrayLike | None = None,
        mask: Booleans | None = None,
        logit_indices: npt.ArrayLike | None = None,
    ) -> Logits:
        """Append tokens to the texts and return logits, float32 [batch, positions wanted, vocab].

        input_ids      [batch, tokens], of each row the first `counts` real, the rest of any value below the vocabulary
        counts         [batch], 0 to tokens; by default all are real. `lengths` grow by them
        positions      [batch, tokens], by default those that follow the text
        mask           [batch, tokens, tokens], which of the new tokens each new one attends to (a tree of drafts);
                       by default itself and those before it. To the cached ones each attends, as far as the model does
        logit_indices  [batch, positions wanted], which of the tokens logits are wanted of; by default the last real one

        Raises `UsageError` for a text that becomes longer than the limit and for ids that are none, `EngineError`.
        """
        ids = np.asarray(input_ids, np.int64)
        if ids.ndim != 2 or ids.shape[0] != self.batch or ids.shape[1] < 1:
            raise UsageError(f"input_ids {ids.shape}: expected [{self.batch}, tokens].")
        self._check_ids(ids.min(), ids.max())
        tokens = ids.shape[1]
        real = np.full(self.batch, tokens, np.int64) if counts is None else np.asarray(counts, np.int64)
        if real.shape != (self.batch,) or real.min() < 0 or real.max() > tokens:
            raise UsageError(f"counts {real.tolist()}: expected {self.batch} from 0 to {tokens}.")
        wanted = np.maximum(real - 1, 0)[:, None] if logit_indices is None else np.asarray(logit_indices, np.int64)
        if wanted.ndim != 2 or wanted.shape[0] != self.batch or wanted.min() < 0 or wanted.max() >= tokens:
            raise UsageError(f"logit_indices {wanted.shape}: expected [{self.batch}, wanted] from 0 to {tokens - 1}.")
        self._check_lengths(real.tolist())
        buffers = self._prepare(tokens, wanted.shape[1], wanted.shape[1])
        buffers.input_ids[:] = ids
        buffers.logit_indices[:] = wanted
        buffers.draft_indices[:] = wanted
        if positions is not None:
            buffers.positions[:] = positions
        if mask is not None:
            for row, length in enumerate(self.lengths):
                buffers.attention_mask[row, :, length : length + tokens] &= mask[row]
        return self._run(buffers, real.tolist())

    def _prepare(self, tokens: int, wanted: int, drafting: int) -> _Buffers:
        """The buffers of a step of so many tokens and logits, with room in the cache: for texts without branches.

        `drafting`: after so many of the tokens, where the graph drafts.
        """
        self._reserve(max(self.lengths) + tokens + drafted(self.decoder, drafting))
        buffers = self._bound(tokens, wanted, drafting)
        # Engines leave no cache warm for Python: here every call of NumPy counts.
        for row, length in enumerate(self.lengths):
            buffers.write_start[row] = length
            buffers.positions[row] = self._positions[length : length + tokens]
            buffers.attention_mask[row] = self._seen[length : length + tokens]
        return buffers

    def _branch(self, buffers: _Buffers, row: int, parents: Sequence[int]) -> None:
        """Let the new tokens of a text be a tree, each in the place after its parent, and seeing its ancestors only."""
        length, count, window = self.lengths[row], len(parents), self.decoder.sliding_window
        places = length + np.array(depths(parents))
        mask, seen = buffers.attention_mask[row, :count], ancestors(parents)
        if window is not None:
            mask[:, :length] = self._slots[:length] > places[:, None] - window
            seen &= places[:, None] - places < window
        mask[:, length:] = False
        mask[:, length : length + count] = seen
        buffers.positions[row, :count] = places

    def _run(self, buffers: _Buffers, counts: Sequence[int]) -> Logits:
        """Run a step that adds `counts` [batch] tokens to the texts."""
        if buffers.drafting:
            feeds = draft_feeds(
                self.decoder, buffers.positions, buffers.attention_mask, buffers.write_start, buffers.draft_indices
            )
            for name, array in feeds.items():
                buffers.drafting[name][:] = array
        began = time.perf_counter()
        buffers.run()
        self.seconds += time.perf_counter() - began
        self.lengths = [*map(add, self.lengths, counts)]
        self.blocks_run = buffers.blocks_run
        if buffers.drafting:
            self.draft_logits = np.array(buffers.drafting[DRAFT_LOGITS][..., : self.vocabulary], np.float32)
        return np.array(buffers.logits[..., : self.vocabulary], np.float32)  # a copy: the next step writes over them

    def rollback(self, lengths: npt.ArrayLike) -> None:
        """Forget what the texts hold beyond `lengths`, [batch] or one for all. Raises `UsageError` if it is more."""
        wanted = np.broadcast_to(np.asarray(lengths, np.int64), (self.batch,)).tolist()
        if any(not 0 <= less <= length for less, length in zip(wanted, self.lengths, strict=True)):
            raise UsageError(f"rollback to {wanted} tokens: the cache holds {self.lengths}.")
        self.lengths = wanted

    def truncate(self, row: int, length: int) -> None:
        """Forget what the text in `row` of the batch holds beyond `length` tokens, if it holds more."""
        self.lengths[row] = min(self.lengths[row], length)

    def copy(self, source: int, row: int, length: int) -> None:
        """Let `row` of the batch hold the first `length` tokens of row `source`, and nothing else.

        Raises `UsageError` where `source` holds fewer.
        """
        self._copy_slots(source, row, length)
        self.lengths[row] = length

    def _copy_slots(self, source: int, row: int, length: int) -> None:
        if not 0 <= length <= self.lengths[source]:
            raise UsageError(f"copy of {length} tokens: row {source} of the cache holds {self.lengths[source]}.")
        for cache in self._caches.values():
            cache[row][:, :length] = cache[source][:, :length]

    def keep(self, row: int, start: int, places: Sequence[int]) -> None:
        """Of what the text in `row` holds from `start` on, keep the tokens at `places`, ascending; the others go.

        They move up behind each other in the cache, which stays where it is.
        """
        stay = next((index for index, place in enumerate(places) if index != place), len(places))
        new, old = slice(start + stay, start + len(places)), start + np.asarray(places[stay:], np.int64)
        if len(old):
            for cache in self._caches.values():
                cache[row][:, new] = cache[row][:, old]
        self.lengths[row] = new.stop

    def _check_ids(self, least: int, greatest: int) -> None:
        if least < 0 or greatest >= self.decoder.vocab_size:
            raise UsageError(f"token ids {least} to {greatest}: expected 0 to {self.decoder.vocab_size - 1}.")

    def _check_lengths(self, more: Sequence[int]) -> None:
        longest = max(map(add, self.lengths, more))
        if longest > self.limit:
            which = "model's" if self.limit == self.decoder.max_positions else "cache's"
            raise UsageError(
                f"text of {longest} tokens, the {which} limit is {self.limit}. Shorten the prompt, or ask for less."
            )

    def _reserve(self, slots: int) -> None:
        """Make room for `slots` in every row; what the cache holds is copied."""
        if self._most is not None and slots > self._most:
            raise UsageError(f"{slots} slots of the cache are needed, the engine has {self._most}. Build a longer one.")
        if slots > self.capacity:
            self._allocate(-(-slots // CAPACITY_STEP) * CAPACITY_STEP)

    def _allocate(self, capacity: int) -> None:
        decoder = self.decoder
        self._resize(capacity)
        for index in range(decoder.layers):
            for kind in ("key", "value"):
                name = f"{kind}_{index}"
                old = self._caches.pop(name, None)
                shape = (self.batch, decoder.kv_heads, capacity, decoder.head_dim)
                self._caches[name] = np.zeros(shape, self._dtypes[f"past_{name}"])  # masked, but must be numbers
                if old is not None:
                    self._caches[name][:, :, : old.shape[2]] = old

    def _resize(self, capacity: int) -> None:
        """Let steps be for caches of so many slots."""
        self._buffers.clear()  # they are bound to the old caches
        self._slots = np.arange(capacity)
        self._positions = np.minimum(self._slots, self.decoder.max_positions - 1)  # beyond are tokens that are not real
        self._seen = seen_slots(capacity, self.decoder.sliding_window)

    def _attend(self, arrays: dict[str, Array], tokens: int) -> None:
        """Let the steps that follow read `arrays` as further inputs, by name: the same ones for so many `tokens`."""
        self._attended, self._attended_tokens = arrays, tokens

    def _bound(self, tokens: int, wanted: int, drafting: int) -> _Buffers:
        shape = tokens, wanted, drafting, self._attended_tokens
        if (found := self._buffers.pop(shape, None)) is not None:
            self._buffers[shape] = found  # the last of the dictionary again
            return found
        if len(self._buffers) == KEPT_SHAPES:
            self._buffers.pop(next(iter(self._buffers)))  # the one that was not used for longest
        arrays: dict[str, Any] = {
            "input_ids": np.zeros((self.batch, tokens), np.int64),
            "positions": np.zeros((self.batch, tokens), np.int64),
            "attention_mask": np.zeros((self.batch, tokens, self.capacity), np.bool_),
            "write_start": np.zeros(self.batch, np.int64),
            "logit_indices": np.zeros((self.batch, wanted), np.int64),
        }
        output = self.logits_name
        logits = np.zeros((self.batch, wanted, self.decoder.vocab_size), self._dtypes[output])
        draft_indices = np.zeros((self.batch, drafting), np.int64)
        drafts = self._drafts(draft_indices) if self.decoder.drafts else {}
        blocks_run = np.zeros((self.batch, wanted), np.int64)
        counted = {BLOCKS_RUN: blocks_run} if self.decoder.saturation_exits else {}
        if isinstance(self.engine, OnnxRuntimeEngine):
            caches = {f"{when}_{name}": array for name, array in self._caches.items() for when in ("past", "present")}
            run = self.engine.bind({**arrays, **caches, **drafts, output: logits, **counted, **self._attended}).run
        else:
            given = {name: array for name, array in drafts.items() if name == DRAFT_LOGITS}
            taken = {name: array for name, array in drafts.items() if name != DRAFT_LOGITS}
            run = self._copying({**arrays, **taken}, {output: logits, **given, **counted})
        self._buffers[shape] = _Buffers(
            **arrays, draft_indices=draft_indices, logits=logits, drafting=drafts, blocks_run=blocks_run, run=run
        )
        return self._buffers[shape]

    def _drafts(self, indices: Integers) -> dict[str, Array]:
        """What a graph that drafts after the tokens at `indices` takes, they among it, and gives besides logits."""
        drafting, slots = indices.shape[1], drafted(self.decoder, indices.shape[1])
        lengths = {"batch": self.batch, "drafting": drafting, "drafted": slots, "capacity": self.capacity}
        specs = [spec for spec in (*self.engine.inputs, *self.engine.outputs) if spec.name.startswith("draft_")]
        return zeros(specs, lengths) | {"draft_indices": indices}

    def _copying(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> Callable[[], None]:
        """Run an engine that binds no arrays: it gives the caches back as new ones."""

        def run() -> None:
            past = {f"past_{name}": array for name, array in self._caches.items()}
            given = self.engine.run({**inputs, **past, **self._attended})
            self._caches = {name: given[f"present_{name}"] for name in self._caches}
            for name, array in outputs.items():
                array[:] = given[name]

        return run
