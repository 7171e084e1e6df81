"""Real sentences that ship with the project, to check an exported model on real input."""

from __future__ import annotations

from importlib import resources


def sentences() -> list[str]:
    """96 English sentences of 8 to 40 words from the Python documentation, in a fixed order."""
    text = resources.files("intaglio.samples").joinpath("sentences.txt").read_text(encoding="utf-8")
    return [line for line in text.splitlines() if not line.startswith("#")]
