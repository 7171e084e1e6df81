"""The log-mel features of a recording, computed block by block by the graph of the front end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from intaglio.bundle.bundle import Transcriber
from intaglio.runtime.engines.engine import Engine
from intaglio.runtime.speech.audio_file import Samples

BLOCK = 3000  # frames of a run of the graph
DYNAMIC_RANGE = 8.0  # powers of ten: lower numbers of a recording are raised to its largest less this
AUDIO, LOG_MEL = "audio", "log_mel"


class Features:
    """The features float32 [bands, frames] of a recording, at least one window of them, and how long it is."""

    def __init__(self, engine: Engine, transcriber: Transcriber, blocks: Iterable[Samples]):
        """Read all of `blocks`, samples in order; a recording shorter than a window ends in silence."""
        self._transcriber = transcriber
        self.samples = 0
        parts = [engine.run({AUDIO: part[None]})[LOG_MEL][0] for part in self._parts(blocks)]
        total = max(self.samples, transcriber.frames * transcriber.hop) // transcriber.hop
        logs = np.concatenate(parts, axis=1)[:, :total]
        self.values = (np.maximum(logs, logs.max() - DYNAMIC_RANGE) + 4) / 4
        self.content = min(total, -(-self.samples // transcriber.hop))  # frames before the silence

    @property
    def frames(self) -> int:
        """The number of frames, at least those of a window."""
        return int(self.values.shape[1])

    @property
    def seconds(self) -> float:
        """The length of the recording."""
        return self.samples / self._transcriber.sample_rate

    def window(self, first: int) -> Samples:
        """The window [1, bands, frames of a window] from the frame `first` on, with zeros behind the last frame."""
        found = self.values[:, first : first + self._transcriber.frames]
        window = np.zeros((1, len(found), self._transcriber.frames), np.float32)
        window[0, :, : found.shape[1]] = found
        return window

    def _parts(self, blocks: Iterable[Samples]) -> Iterator[Samples]:
        """The recording, mirrored at both ends, in parts from which the graph computes consecutive frames."""
        window, hop = self._transcriber.window, self._transcriber.hop
        half = window // 2
        pending: Samples = np.zeros(0, np.float32)
        begun = False
        for block in self._padded(blocks):
            pending = np.concatenate([pending, block])
            if not begun and len(pending) > half:
                pending, begun = np.concatenate([pending[half:0:-1], pending]), True
            while begun and len(pending) >= window + BLOCK * hop + half:  # what is mirrored at the end stays
                yield pending[: window + (BLOCK - 1) * hop]
                pending = pending[BLOCK * hop :]
        yield np.concatenate([pending, pending[-2 : -half - 2 : -1]])

    def _padded(self, blocks: Iterable[Samples]) -> Iterator[Samples]:
        for block in blocks:
            self.samples += len(block)
            yield block
        if (missing := self._transcriber.frames * self._transcriber.hop - self.samples) > 0:
            yield np.zeros(missing, np.float32)
