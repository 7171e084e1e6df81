"""Speech models whose output frames depend only on nearby samples, computed without rounding."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FRAME = 10  # samples
RATE = 100  # Hz


@dataclass(frozen=True)
class LocalModel:
    """Frame i depends on the samples from i * FRAME - reach to (i + 1) * FRAME + reach, zeros beyond the ends.

    A recording has one frame per started FRAME samples, plus `more`. In `pairs`, frames 2i and 2i + 1 see the
    samples of both, as in a network that halves the frame rate.
    """

    reach: int
    tokens: int = 4
    more: int = 0
    pairs: bool = False

    def __call__(
        self, audio: npt.NDArray[np.float32], lengths: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
        frames = -(-lengths // FRAME) + self.more
        log_probs = np.full((len(audio), int(frames.max()), self.tokens), -5.0)
        for row, (samples, length, count) in enumerate(zip(audio, lengths, frames, strict=True)):
            for frame in range(int(count)):
                start, stop = (frame // 2 * 2, frame // 2 * 2 + 2) if self.pairs else (frame, frame + 1)
                near = samples[max(0, start * FRAME - self.reach) : min(length, stop * FRAME + self.reach)]
                # Sums of multiples of 1/128 are exact in any order.
                log_probs[row, frame] = -((near.astype(np.float64).sum() * 128 * (1 + np.arange(self.tokens))) % 11)
        return log_probs, frames


def recording(samples: int, seed: int = 0) -> npt.NDArray[np.float32]:
    """Random samples that are multiples of 1/128, with pauses."""
    random = np.random.default_rng(seed)
    values = random.integers(-128, 129, samples) * (np.arange(samples) // 70 % 3 > 0)
    return (values / 128).astype(np.float32)
