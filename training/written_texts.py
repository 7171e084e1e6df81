"""What a large model writes after prompts, for a small one to learn from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from intaglio.progress import track
from intaglio.runtime.generation.generate import TextGenerator


class WrittenText(NamedTuple):
    """A prompt and what was written after it, as token ids."""

    source: Sequence[int]  # what an encoder reads, which is the prompt; empty where there is no encoder
    tokens: Sequence[int]  # what a decoder sees: the prompt, or the one token that stands in for it, and the output
    written: int  # how many tokens, the last ones, are the output


def write_texts(generator: TextGenerator, prompts: Sequence[str]) -> list[WrittenText]:
    """Write a text after each prompt, as many side by side as the generator does.

    Raises `UsageError`, before any is written, for a prompt that is longer than the models take.
    """
    generator.check(prompts)
    runs = track(generator.write_each(prompts), "the large model is writing", total=len(prompts))
    return [WrittenText(run.state.source, (*run.state.start, *run.state.tokens), len(run.state.tokens)) for run in runs]
