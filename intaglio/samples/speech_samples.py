"""Real recordings that ship with the project, to check an exported speech recogniser on real input."""

from __future__ import annotations

from importlib import resources
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from intaglio.extras import load

SAMPLE_RATE = 16000  # Hz


class Recording(NamedTuple):
    """Speech and its reference transcript."""

    name: str
    samples: npt.NDArray[np.float32]  # [samples] at `SAMPLE_RATE`, from -1 to 1
    text: str  # lower case, without punctuation


def recordings() -> list[Recording]:
    """5 English sentences of 3 to 7 seconds by one reader, in a fixed order. Raises `MissingExtraError`."""
    soundfile = load("soundfile")
    folder = resources.files("intaglio.samples").joinpath("recordings")
    lines = folder.joinpath("transcripts.tsv").read_text(encoding="utf-8").splitlines()
    found = []
    for name, text in (line.split("\t") for line in lines):
        with folder.joinpath(name).open("rb") as file:
            samples, _ = soundfile.read(file, dtype="float32")
        found.append(Recording(name, samples, text))
    return found
