"""Recordings for tests: a tone in any format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import soundfile

RATE = 16_000  # Hz


def tone(seconds: float = 1.0, rate: int = RATE, frequency: float = 440.0) -> npt.NDArray[np.float32]:
    return (0.5 * np.sin(2 * np.pi * frequency * np.arange(int(seconds * rate)) / rate)).astype(np.float32)


def write_sound(
    path: Path, samples: npt.NDArray[Any], rate: int = RATE, subtype: str = "PCM_16", kind: str = "WAV"
) -> Path:
    soundfile.write(path, samples, rate, subtype=subtype, format=kind)
    return path
