"""The decoder session: an engine of a decoder's bundle, and the cache of keys and values that it writes in place.

The cache is a pair of buffers a layer, [batch, kv_heads, capacity, head_dim], and a length for every row of the batch:
the slots that hold tokens. What lies beyond a row's length is of no meaning and never seen, so that rolling back is
lowering a length, and rows of a batch may be of different lengths. The capacity grows in steps, as attention on a CPU
reads all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from intaglio.bundle import Axis, Bundle, Decoder
from intaglio.errors import BundleError, UsageError
from intaglio.runtime.engine import Array, Engine, open_engine
from intaglio.runtime.onnxruntime_engine import OnnxRuntimeEngine

Integers = npt.NDArray[np.int64]
Booleans = npt.NDArray[np.bool_]
Logits = npt.NDArray[np.float32]

CAPACITY_STEP = 128  # slots by which a cache grows; a copy of all of it each time, a small part of so many steps
PREFILL_TOKENS = 512  # tokens of a prompt that are run at a time; bounds the memory that attention scores take
KEPT_SHAPES = 8  # shapes of a step whose buffers stay bound: one for plain decoding, a few for drafts of any length


@dataclass(frozen=True)
class _Buffers:
    """The arrays that steps of one shape read and write, and what runs the engine on them."""

    input_ids: Integers
    positions: Integers
    attention_mask: Booleans
    write_start: Integers
    logit_indices: Integers
    logits: Array
    run: Callable[[], None]


class DecoderSession:
    """A decoder and its cache, for `batch` texts at a time. A context manager.

    `lengths` [batch] are the tokens that the cache holds of each text. Not for use from several threads at once.
    """

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
        self.lengths: Integers = np.zeros(batch, np.int64)
        self._caches: dict[str, Array] = {}  # name after "past_" -> [batch, kv_heads, capacity, head_dim]
        self._buffers: dict[tuple[int, int], _Buffers] = {}  # by tokens and positions wanted
        self._dtypes = {spec.name: spec.dtype for spec in (*engine.inputs, *engine.outputs)}
        self._slots: Integers = np.zeros(0, np.int64)  # 0, 1, ..., capacity - 1
        self._most = engine.axes.get("capacity", Axis()).maximum  # slots that the engine takes; None: any number
        if self._most is not None:  # TensorRT's caches have one length
            self._allocate(self._most)
            self.limit = min(self.limit, self._most)

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
        """Open the decoder in `bundle`; `target` as of `open_engine`, `threads` and `spinning` for "ort-cpu".

        Raises `BundleError` for a bundle that is no decoder, `UsageError` for a limit that the model cannot take.
        """
        opened = bundle if isinstance(bundle, Bundle) else Bundle.open(bundle)
        decoder = decoder_of(opened)
        on_cpu = target == "ort-cpu"
        engine = OnnxRuntimeEngine(opened, target, threads, spinning) if on_cpu else open_engine(opened.path, target)
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
        """Append a prompt (token ids) to every text of the batch, in pieces; return the logits [batch, vocab] after it.

        Raises `UsageError` for an empty prompt, and for one that makes its text longer than the limit.
        """
        counts = np.array([len(prompt) for prompt in prompts], np.int64)
        if len(counts) != self.batch or not counts.all():
            raise UsageError(f"prompts of {counts.tolist()} tokens: expected {self.batch}, each of at least 1 token.")
        self._check_lengths(counts)
        input_ids = np.zeros((self.batch, int(counts.max())), np.int64)
        for row, prompt in zip(input_ids, prompts, strict=True):
            row[: len(prompt)] = prompt
        last = np.zeros((self.batch, self.decoder.vocab_size), np.float32)
        piece = min(PREFILL_TOKENS, self.engine.axes.get("tokens", Axis()).maximum or PREFILL_TOKENS)
        for start in range(0, input_ids.shape[1], piece):
            real = np.clip(counts - start, 0, piece)
            logits = self.step(input_ids[:, start : start + int(real.max())], real)[:, 0]
            last[real > 0] = logits[real > 0]
        return last

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
        if ids.min() < 0 or ids.max() >= self.decoder.vocab_size:
            raise UsageError(f"token ids {ids.min()} to {ids.max()}: expected 0 to {self.decoder.vocab_size - 1}.")
        tokens = ids.shape[1]
        real = np.full(self.batch, tokens, np.int64) if counts is None else np.asarray(counts, np.int64)
        if real.shape != (self.batch,) or real.min() < 0 or real.max() > tokens:
            raise UsageError(f"counts {real.tolist()}: expected {self.batch} from 0 to {tokens}.")
        wanted = np.maximum(real - 1, 0)[:, None] if logit_indices is None else np.asarray(logit_indices, np.int64)
        if wanted.ndim != 2 or wanted.shape[0] != self.batch or wanted.min() < 0 or wanted.max() >= tokens:
            raise UsageError(f"logit_indices {wanted.shape}: expected [{self.batch}, wanted] from 0 to {tokens - 1}.")
        self._check_lengths(real)
        self._reserve(int(self.lengths.max()) + tokens)
        buffers = self._bound(tokens, wanted.shape[1])
        buffers.input_ids[:] = ids
        buffers.write_start[:] = self.lengths
        buffers.logit_indices[:] = wanted
        places = self.lengths[:, None] + np.arange(tokens)  # slots, and positions of texts without branches
        if positions is None:
            np.minimum(places, self.decoder.max_positions - 1, out=buffers.positions)
        else:
            buffers.positions[:] = positions
        fill_mask(buffers.attention_mask, places, self._slots, self.decoder.sliding_window)
        if mask is not None:
            for row, length in enumerate(self.lengths):
                buffers.attention_mask[row, :, length : length + tokens] &= mask[row]
        buffers.run()
        self.lengths = self.lengths + real
        return buffers.logits.astype(np.float32)  # a copy: the next step writes over them

    def rollback(self, lengths: npt.ArrayLike) -> None:
        """Forget what the texts hold beyond `lengths`, [batch] or one for all. Raises `UsageError` if it is more."""
        wanted = np.broadcast_to(np.asarray(lengths, np.int64), (self.batch,)).copy()
        if wanted.min() < 0 or (wanted > self.lengths).any():
            raise UsageError(f"rollback to {wanted.tolist()} tokens: the cache holds {self.lengths.tolist()}.")
        self.lengths = wanted

    def _check_lengths(self, more: Integers) -> None:
        longest = int((self.lengths + more).max())
        if longest > self.limit:
            which = "model's" if self.limit == self.decoder.max_positions else "cache's"
            raise UsageError(
                f"text of {longest} tokens, the {which} limit is {self.limit}. Shorten the prompt, or ask for less."
            )

    def _reserve(self, slots: int) -> None:
        """Make room for `slots` in every row; what is valid is copied."""
        if self._most is not None and slots > self._most:
            raise UsageError(f"{slots} slots of the cache are needed, the engine has {self._most}. Build a longer one.")
        if slots > self.capacity:
            self._allocate(-(-slots // CAPACITY_STEP) * CAPACITY_STEP)

    def _allocate(self, capacity: int) -> None:
        decoder, valid = self.decoder, int(self.lengths.max())
        self._buffers.clear()  # they are bound to the old caches
        self._slots = np.arange(capacity)
        for index in range(decoder.layers):
            for kind in ("key", "value"):
                name = f"{kind}_{index}"
                old = self._caches.pop(name, None)
                shape = (self.batch, decoder.kv_heads, capacity, decoder.head_dim)
                self._caches[name] = np.zeros(shape, self._dtypes[f"past_{name}"])  # masked, but must be numbers
                if old is not None:
                    self._caches[name][:, :, :valid] = old[:, :, :valid]

    def _bound(self, tokens: int, wanted: int) -> _Buffers:
        if (found := self._buffers.get((tokens, wanted))) is not None:
            return found
        if len(self._buffers) == KEPT_SHAPES:
            self._buffers.pop(next(iter(self._buffers)))
        arrays: dict[str, Any] = {
            "input_ids": np.zeros((self.batch, tokens), np.int64),
            "positions": np.zeros((self.batch, tokens), np.int64),
            "attention_mask": np.zeros((self.batch, tokens, self.capacity), np.bool_),
            "write_start": np.zeros(self.batch, np.int64),
            "logit_indices": np.zeros((self.batch, wanted), np.int64),
        }
        logits = np.zeros((self.batch, wanted, self.decoder.vocab_size), self._dtypes["logits"])
        if isinstance(self.engine, OnnxRuntimeEngine):
            caches = {f"{when}_{name}": array for name, array in self._caches.items() for when in ("past", "present")}
            run = self.engine.bind({**arrays, **caches, "logits": logits}).run
        else:
            run = self._copying(arrays, logits)
        self._buffers[tokens, wanted] = _Buffers(**arrays, logits=logits, run=run)
        return self._buffers[tokens, wanted]

    def _copying(self, arrays: dict[str, Array], logits: Array) -> Callable[[], None]:
        """Run an engine that binds no arrays: it gives the caches back as new ones."""

        def run() -> None:
            past = {f"past_{name}": array for name, array in self._caches.items()}
            outputs = self.engine.run({**arrays, **past})
            self._caches = {name: outputs[f"present_{name}"] for name in self._caches}
            logits[:] = outputs["logits"]

        return run


def fill_mask(mask: Booleans, places: Integers, slots: Integers, window: int | None) -> None:
    """Let the token at each of `places` [batch, tokens] attend to the slots up to its own, in `mask`.

    mask    [batch, tokens, capacity], written
    slots   [capacity]: 0, 1, 2, ...
    window  how many of them, its own among them; None: all
    """
    np.less_equal(slots, places[:, :, None], out=mask)
    if window is not None:
        mask &= slots > places[:, :, None] - window


def decoder_of(bundle: Bundle) -> Decoder:
    """The decoder that a bundle holds. Raises `BundleError` when it holds something else."""
    if bundle.manifest.decoder is None:
        raise BundleError(
            f"bundle {bundle.path}: its task is {bundle.manifest.task or 'unknown'!r}, not 'generate'. "
            "Export a decoder, such as GPT2LMHeadModel or LlamaForCausalLM."
        )
    return bundle.manifest.decoder
