"""The session of an encoder-decoder for speech: a decoder session whose steps also attend to encoded features."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import numpy as np

from intaglio.bundle.bundle import Bundle, Decoder, Encoder, Transcriber
from intaglio.errors import BundleError
from intaglio.runtime.adapters.adapters import Adapters
from intaglio.runtime.engines.engine import Engine
from intaglio.runtime.engines.memory import Array
from intaglio.runtime.engines.opening import open_engine
from intaglio.runtime.sessions.decoder import DecoderSession
from intaglio.runtime.sessions.device_logits import Logits
from intaglio.runtime.sessions.step import LOGITS, SOURCE, present_names


def session_outputs(decoder: Decoder, transcriber: Transcriber) -> list[str] | None:
    """The outputs of the decoder's graph that a session computes, without those for times of words; None: all."""
    return [LOGITS, *present_names(decoder.layers)] if transcriber.alignment_heads else None


class SpeechSession(DecoderSession):
    """An encoder of features, a decoder and its cache. `encode` a window, then append tokens as with any decoder."""

    def __init__(self, engine: Engine, encoder_engine: Engine, decoder: Decoder, encoder: Encoder, batch: int = 1):
        """`engine` runs the decoder, `encoder_engine` the encoder; the rest as in `DecoderSession`."""
        super().__init__(engine, decoder, batch)
        self.encoder_engine, self.encoder = encoder_engine, encoder
        positions = int(encoder_engine.outputs[0].shape[2])  # that a window is encoded to
        axes = {"batch": batch, SOURCE: positions}
        shapes = {
            spec: [axis if isinstance(axis, int) else axes[axis] for axis in spec.shape]
            for spec in engine.inputs
            if SOURCE in spec.shape
        }
        self._cross_kv = {spec.name: engine.memory.zeros(shape, spec.dtype) for spec, shape in shapes.items()}
        self._attend(self._cross_kv, positions)

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
        """Open both parts of `bundle`. Raises `BundleError` if it is not an encoder-decoder for recordings."""
        opened = Bundle.open(bundle)
        decoder, encoder = opened.manifest.decoder, opened.manifest.encoder
        if decoder is None or encoder is None or opened.manifest.transcriber is None:
            raise BundleError(f"bundle {opened.path}: not an encoder-decoder for recordings. Export a Whisper.")
        assert adapters is None and cache_bits is None, "no caller has any"
        outputs = session_outputs(decoder, opened.manifest.transcriber)
        engine = open_engine(opened, target, threads, spinning, outputs)
        try:
            encoder_engine = open_engine(opened, target, threads, spinning=False, graph=encoder.file)
            return cls(engine, encoder_engine, decoder, encoder, batch)
        except BaseException:
            engine.close()
            raise

    def close(self) -> None:
        """Release both engines and the cache."""
        self.encoder_engine.close()
        for buffer in self._cross_kv.values():
            self.engine.memory.release(buffer)
        super().close()

    def encode(self, features: Array) -> None:
        """Restart every row with a window of `features` float32 [batch or 1, bands, frames]; one is for all rows."""
        began = time.perf_counter()
        (given,) = self.encoder_engine.inputs
        found = self.encoder_engine.run({given.name: features.astype(given.dtype, copy=False)})
        self.seconds += time.perf_counter() - began
        self.rollback(0)
        for name, buffer in self._cross_kv.items():
            self.engine.memory.copy(buffer, found[name])

    def append_first(self, tokens: Sequence[int], wanted: int) -> Logits:
        """Append `tokens` to the first row alone; return the logits [wanted, vocab] at its end."""
        others = self.batch - 1
        return self.append([list(tokens), *[[]] * others], [wanted, *[0] * others])[0]

    def cross_kv(self, name: str) -> Array:
        """The keys or values of every row's window, the decoder's input `name`, float32."""
        return np.array(self._cross_kv[name][:], np.float32)
