"""The session of an encoder-decoder: a decoder session whose steps also attend to encoded source sequences."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import numpy as np

from intaglio.bundle.bundle import Axis, Bundle, Decoder, Encoder, TensorSpec
from intaglio.errors import BundleError, UsageError
from intaglio.runtime.adapters.adapter import MERGE
from intaglio.runtime.adapters.adapters import Adapters
from intaglio.runtime.engines.caches.quantized_cache import check_manifest
from intaglio.runtime.engines.engine import Engine
from intaglio.runtime.engines.memory import Array, Buffer
from intaglio.runtime.engines.opening import open_engine
from intaglio.runtime.sessions.decoder import DecoderSession
from intaglio.runtime.sessions.step import CROSS, SOURCE, SOURCE_IDS, SOURCE_MASK
from intaglio.runtime.sessions.step_buffers import Integers

SOURCE_TOKENS = 32  # minimum capacity of source buffers


class EncoderDecoderSession(DecoderSession):
    """An encoder, a decoder and its cache. `encode` the sources, then generate as with any decoder.

    A generated sequence begins with `encoder.decoder_start_token_id` in place of a prompt.
    """

    def __init__(
        self,
        engine: Engine,
        encoder_engine: Engine,
        decoder: Decoder,
        encoder: Encoder,
        batch: int = 1,
        limit: int | None = None,
    ):
        """`engine` runs the decoder, `encoder_engine` the encoder; the rest as in `DecoderSession`."""
        super().__init__(engine, decoder, batch, limit)
        self.encoder_engine, self.encoder = encoder_engine, encoder
        self._source_buffers: dict[int, dict[str, Buffer]] = {}  # source buffers by their capacity in tokens
        self._source_lengths = [0] * batch
        self.encode([[encoder.pad_token_id]])  # so that steps can run before there is a source

    @property
    def source_limit(self) -> int:
        """Maximum number of tokens of a source: of both engines, and for relative positions that of the decoder."""
        axes = [engine.axes.get(SOURCE, Axis()).maximum for engine in (self.engine, self.encoder_engine)]
        return min([self.decoder.max_positions, *filter(None, axes)])

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
        """Open both parts of `bundle`; the options: see `DecoderSession.open`.

        Raises `BundleError` if the bundle is not an encoder-decoder, `UsageError` for adapters and `cache_bits`,
        which it does not take.
        """
        opened = Bundle.open(bundle)
        decoder, encoder = opened.manifest.decoder, opened.manifest.encoder
        if decoder is None or encoder is None or opened.manifest.transcriber is not None:
            raise BundleError(
                f"bundle {opened.path}: its task is {opened.manifest.task or 'unknown'!r}, not 'text-to-text'. "
                "Export an encoder-decoder, such as T5ForConditionalGeneration."
            )
        if adapters is not None:
            raise UsageError(f"--adapter: {opened.path} is an encoder-decoder, expected a decoder. {MERGE}")
        if cache_bits is not None:
            check_manifest(opened, cache_bits)
        engine = open_engine(opened, target, threads, spinning)
        try:
            encoder_engine = open_engine(
                opened, target, threads, spinning=False, graph=encoder.file
            )  # runs once per sequence
            return cls(engine, encoder_engine, decoder, encoder, batch, limit)
        except BaseException:
            engine.close()
            raise

    def close(self) -> None:
        """Release both engines and the cache."""
        self.encoder_engine.close()
        for buffers in self._source_buffers.values():
            for buffer in buffers.values():
                self.engine.memory.release(buffer)
        self._source_buffers.clear()
        super().close()

    def encode(self, sources: Sequence[Sequence[int]]) -> None:
        """Restart every row with a source from `sources` (token ids).

        If there are fewer sources than rows, the rest get padding only. Raises `UsageError` for a source without
        tokens, and for invalid ids.
        """
        counts = [len(source) for source in sources]
        if not 1 <= len(counts) <= self.batch:
            raise UsageError(f"sources of {counts} tokens: expected 1 to {self.batch}, each of at least 1 token.")
        cross_kv = self._run_encoder([*sources, *[[]] * (self.batch - len(sources))], len(sources))
        self.rollback(0)
        self._source_lengths = [*counts, *[0] * (self.batch - len(counts))]
        self._use_capacity(max(self._source_lengths))
        for row in range(self.batch):
            self._place(row, {name: array[row] for name, array in cross_kv.items()}, self._source_lengths[row])

    def encode_rows(self, rows: Sequence[int], source: Sequence[int]) -> None:
        """Restart `rows` with one source for all of them; the other rows continue. Raises as `encode` does."""
        cross_kv = self._run_encoder([source], 1)
        for row in rows:
            self.truncate(row, 0)
            self._source_lengths[row] = len(source)
        self._use_capacity(max(self._source_lengths))
        for row in rows:
            self._place(row, {name: array[0] for name, array in cross_kv.items()}, len(source))

    def cross_kv(self, row: int) -> dict[str, Buffer]:
        """The cross-attention KV cache of `row` by input, views [kv_heads, tokens of the source, head_dim]."""
        specs = [spec for spec in self._specs if spec.name.startswith(CROSS)]
        tokens = self._source_lengths[row]
        return {spec.name: self._attended[spec.name][(row, *self._part(spec, tokens)[1:])] for spec in specs}

    def _run_encoder(self, sources: Sequence[Sequence[int]], given: int) -> dict[str, Array]:
        """Encode `sources`, padded to the same length; the first `given` of them must have tokens."""
        counts = [len(source) for source in sources]
        if not all(counts[:given]):
            raise UsageError(f"sources of {counts[:given]} tokens: expected each of at least 1 token.")
        ids: Integers = np.full((len(sources), max(counts)), self.encoder.pad_token_id, np.int64)
        for row, source in zip(ids[:given], sources, strict=False):
            self.check_ids(min(source), max(source))
            row[: len(source)] = source
        mask = np.arange(ids.shape[1]) < np.array(counts)[:, None]
        began = time.perf_counter()
        cross_kv = self.encoder_engine.run({SOURCE_IDS.name: ids, SOURCE_MASK.name: mask})
        self.seconds += time.perf_counter() - began
        return {**cross_kv, SOURCE_MASK.name: mask}

    def _use_capacity(self, tokens: int) -> None:
        """Use source buffers for at least `tokens` tokens, keeping their content.

        There are buffers for only a few capacities, each twice the previous one, and they stay bound.
        """
        capacity = max(SOURCE_TOKENS, 1 << (tokens - 1).bit_length())
        capacity = min(capacity, self.engine.axes.get(SOURCE, Axis()).maximum or capacity)
        if capacity == self._attended_tokens:
            return
        memory, before = self.engine.memory, self._attended
        if capacity not in self._source_buffers:
            self._source_buffers[capacity] = {
                spec.name: memory.zeros(self._shape(spec, capacity), spec.dtype) for spec in self._specs
            }
        shared = min(capacity, self._attended_tokens)
        memory.fill(self._source_buffers[capacity][SOURCE_MASK.name], 0)
        for spec in self._specs if before else ():
            part = self._part(spec, shared)
            memory.copy(self._source_buffers[capacity][spec.name][part], before[spec.name][part])
        self._attend(self._source_buffers[capacity], capacity)

    def _place(self, row: int, cross_kv: dict[str, Array], tokens: int) -> None:
        """Copy `tokens` tokens of each array of `cross_kv` to the source buffers of `row`."""
        memory = self.engine.memory
        memory.fill(self._attended[SOURCE_MASK.name][row], 0)  # the slots beyond hold earlier sources
        for spec in self._specs:
            part = self._part(spec, tokens)[1:]
            memory.copy(self._attended[spec.name][(row, *part)], cross_kv[spec.name][part])

    @property
    def _specs(self) -> list[TensorSpec]:
        """The decoder's inputs that come from the encoder."""
        return [spec for spec in self.engine.inputs if SOURCE in spec.shape]

    def _shape(self, spec: TensorSpec, capacity: int) -> list[int]:
        """The shape of one of these inputs."""
        lengths: dict[int | str, int] = {"batch": self.batch, SOURCE: capacity}
        return [axis if isinstance(axis, int) else lengths[axis] for axis in spec.shape]

    @staticmethod
    def _part(spec: TensorSpec, tokens: int) -> tuple[slice, ...]:
        """The index of the first `tokens` tokens of a source, for all axes."""
        return tuple(slice(tokens) if axis == SOURCE else slice(None) for axis in spec.shape)


def open_session(
    bundle: Bundle,
    target: str = "ort-cpu",
    batch: int = 1,
    threads: int | None = None,
    spinning: bool = True,
    adapters: Adapters | None = None,
    cache_bits: int | None = None,
) -> DecoderSession:
    """Open the decoder, or the encoder-decoder, in `bundle`. Raises `BundleError` for anything else.

    `adapters`, `cache_bits`: of a decoder, see `DecoderSession.open`.
    """
    kind = EncoderDecoderSession if bundle.manifest.encoder is not None else DecoderSession
    return kind.open(
        bundle, target, batch, threads=threads, spinning=spinning, adapters=adapters, cache_bits=cache_bits
    )
