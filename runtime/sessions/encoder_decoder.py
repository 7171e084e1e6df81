"""The session of an encoder-decoder: a decoder's, whose steps also attend to source texts that were read before."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

import numpy as np

from intaglio.bundle import Axis, Bundle, Decoder, Encoder
from intaglio.errors import BundleError, UsageError
from intaglio.runtime.engines.engine import Array, Engine, open_engine, zeros
from intaglio.runtime.sessions.decoder import Booleans, DecoderSession, Integers

SOURCE_TOKENS = 32  # for which there is room at least


class EncoderDecoderSession(DecoderSession):
    """An encoder, a decoder and its cache. `read` the source texts, then write as with any decoder.

    A text that is written begins with `encoder.decoder_start_token_id`, which stands in for the prompt.
    """

    def __init__(
        self,
        engine: Engine,
        reader: Engine,
        decoder: Decoder,
        encoder: Encoder,
        batch: int = 1,
        limit: int | None = None,
    ):
        """`engine` runs the decoder, `reader` the encoder; the rest as of `DecoderSession`."""
        super().__init__(engine, decoder, batch, limit)
        self.reader, self.encoder = reader, encoder
        self._sources: dict[int, dict[str, Array]] = {}  # by the tokens that there is room for
        self._source_lengths = [0] * batch
        self.read([[encoder.pad_token_id]])  # so that steps can be tried before there is a text

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
        """Open both parts of `bundle`; the options are those of `DecoderSession.open`.

        Raises `BundleError` for a bundle that is no encoder-decoder.
        """
        opened = bundle if isinstance(bundle, Bundle) else Bundle.open(bundle)
        decoder, encoder = opened.manifest.decoder, opened.manifest.encoder
        if decoder is None or encoder is None:
            raise BundleError(
                f"bundle {opened.path}: its task is {opened.manifest.task or 'unknown'!r}, not 'text-to-text'. "
                "Export an encoder-decoder, such as T5ForConditionalGeneration."
            )
        engine = open_engine(opened, target, threads, spinning)
        try:
            reader = open_engine(opened, target, threads, spinning=False, graph=encoder.file)  # once a text
            return cls(engine, reader, decoder, encoder, batch, limit)
        except BaseException:
            engine.close()
            raise

    def close(self) -> None:
        """Let go of both engines and the cache."""
        self.reader.close()
        super().close()

    def read(self, sources: Sequence[Sequence[int]]) -> None:
        """Let every text of the batch be written anew, from `sources`, the token ids of each.

        Fewer than the batch are filled up with texts of padding alone. Raises `UsageError` for a source without
        tokens, and for ids that are none.
        """
        counts = [len(source) for source in sources]
        if not 1 <= len(counts) <= self.batch or not all(counts):
            raise UsageError(f"sources of {counts} tokens: expected 1 to {self.batch}, each of at least 1 token.")
        ids: Integers = np.full((self.batch, max(counts)), self.encoder.pad_token_id, np.int64)
        for row, source in zip(ids, sources, strict=False):
            self._check_ids(min(source), max(source))
            row[: len(source)] = source
        lengths = np.array([*counts, *[0] * (self.batch - len(counts))])
        mask = np.arange(ids.shape[1]) < lengths[:, None]
        given = self._encode(ids, mask)
        self.rollback(0)
        self._source_lengths = lengths.tolist()
        self._place(given, slice(None), ids.shape[1])

    def read_row(self, row: int, source: Sequence[int]) -> None:
        """Read the token ids of one row's `source`; its text begins again, the other rows stay as they are.

        Raises `UsageError` as `read` does.
        """
        if not source:
            raise UsageError("source of 0 tokens: expected at least 1.")
        self._check_ids(min(source), max(source))
        given = self._encode(np.array([source], np.int64), np.ones((1, len(source)), np.bool_))
        self.truncate(row, 0)
        self._source_lengths[row] = len(source)
        self._place(given, slice(row, row + 1), len(source))

    def _encode(self, ids: Integers, mask: Booleans) -> dict[str, Array]:
        """What steps attend to, by input name, of the sources `ids` and `mask` [rows, tokens]."""
        began = time.perf_counter()
        crossed = self.reader.run({"source_ids": ids, "source_mask": mask})
        self.seconds += time.perf_counter() - began
        return {"source_mask": mask, **crossed}

    def _place(self, given: Mapping[str, Array], rows: slice, tokens: int) -> None:
        """Put what steps attend to in `rows` where they look for it, for sources of at most so many tokens.

        There are such places for a few lengths only, each the double of another, and what is bound to them stays bound.
        Where the longest source of all rows needs another one, what other rows attend to moves there.
        """
        room = max(SOURCE_TOKENS, 1 << (max(self._source_lengths) - 1).bit_length())
        room = min(room, self.engine.axes.get("source", Axis()).maximum or room)
        specs = [spec for spec in self.engine.inputs if "source" in spec.shape]
        before = self._attended if self._attended_tokens else {}
        if room not in self._sources:
            self._sources[room] = zeros(specs, {"batch": self.batch, "source": room})
        arrays = self._sources[room]
        for spec in specs:
            first = _along(spec.shape, slice(None), slice(min(room, self._attended_tokens)))
            if room != self._attended_tokens and before:
                arrays[spec.name][...] = 0
                arrays[spec.name][first] = before[spec.name][first]
            if spec.name == "source_mask":
                arrays[spec.name][rows] = False  # what lies beyond the tokens is of sources before
            arrays[spec.name][_along(spec.shape, rows, slice(tokens))] = given[spec.name]
        self._attend(arrays, room)


def _along(shape: Sequence[int | str], rows: slice, tokens: slice) -> tuple[slice, ...]:
    """The place of `rows` and of their sources' `tokens` in an array of such a shape."""
    return tuple({"batch": rows, "source": tokens}.get(str(axis), slice(None)) for axis in shape)


def open_session(
    bundle: Bundle, target: str = "ort-cpu", batch: int = 1, threads: int | None = None, spinning: bool = True
) -> DecoderSession:
    """The session of what `bundle` holds: a decoder, or an encoder-decoder. Raises `BundleError` for anything else."""
    kind = EncoderDecoderSession if bundle.manifest.encoder is not None else DecoderSession
    return kind.open(bundle, target, batch, threads=threads, spinning=spinning)
