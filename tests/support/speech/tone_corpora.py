"""Small corpora to train speech recognisers on: a tone of 0.1 s for each word, of several kinds and voices."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import soundfile

RATE = 16000
SIZES = {"train": 8, "validation": 4, "test": 4}
KINDS = {
    "prose": (
        "the length of the list",
        "what the method does",
        "every weight becomes a short whole number",
        "she would ask questions and follow him",
    ),
    "digits": ("three one four", "seven", "nine nine zero two five"),
    "commands": ("open the window", "turn left"),
}


def write_corpus(folder: Path, **sizes: int) -> Path:
    """Write the corpus, of `SIZES` or the `sizes` of its parts, and return the folder."""
    (folder / "recordings").mkdir(parents=True)
    lines = []
    for part, count in (SIZES | sizes).items():
        for number in range(count):
            kind = list(KINDS)[number % len(KINDS)]
            text = KINDS[kind][number // len(KINDS) % len(KINDS[kind])]
            time = np.arange(len(text.split()) * RATE // 10) / RATE
            name = f"recordings/{part}-{number}.flac"
            soundfile.write(folder / name, 0.25 * np.sin(2 * np.pi * (150 + 10 * len(text)) * time), RATE)
            voice = f"{part} {number % 2}"
            line = {"audio_filepath": name, "text": text, "part": part, "kind": kind, "voice": voice}
            lines.append(json.dumps(line) + "\n")
    (folder / "utterances.jsonl").write_text("".join(lines))
    return folder
