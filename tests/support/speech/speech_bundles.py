"""Small speech recognisers as bundles: random ones that output several words per recording."""

from __future__ import annotations

import json
from pathlib import Path

from tiny_speech import TOKENS, save_recogniser

from intaglio.exporters import export

LETTERS = {18: "j", 6: "u"}  # seed -> a frequent letter of this model, used as its space
RECORDINGS = Path(__file__).parents[3] / "intaglio" / "samples" / "recordings"


def export_recogniser(path: Path, seed: int = 18) -> Path:
    """Export one of the `LETTERS` to `path`, and return it."""
    folder = save_recogniser(path.with_name(f"{path.name}-checkpoint"), "conformer-ctc", seed)
    letter = LETTERS[seed]
    tokens = [{" ": letter, letter: " "}.get(token, token) for token in TOKENS]
    (folder / "vocabulary.json").write_text(json.dumps({"tokens": tokens, "blank": 0, "word_mark": " "}))
    export(folder, path, check=False)
    return path
