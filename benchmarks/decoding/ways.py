"""Decoding configurations, compared by generating every text with each of them in turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from intaglio.display.progress import track
from intaglio.runtime.generation.generate import TextGenerator
from intaglio.runtime.generation.scheduling.generated import Generated

WARM_UP = 2  # texts


@dataclass
class Way:
    """A way to generate, and its output."""

    name: str
    generator: TextGenerator
    results: list[Generated] = field(default_factory=list)


def write_in_turn(ways: Sequence[Way], prompts: Sequence[str]) -> None:
    """Write every text in every way, one text at a time, so that all ways meet the machine in the same moods."""
    for way in ways:
        way.generator.reuse_prefix = False  # each reads every prompt itself
    for prompt in prompts[:WARM_UP]:
        for way in ways:
            way.generator.write(prompt).whole()
    for prompt in track(prompts, "writing", len(prompts)):
        for way in ways:
            way.results.append(way.generator.write(prompt).whole())
