"""The output of a large model for prompts, as training data for a small one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from intaglio.display.progress import track
from intaglio.runtime.generation.generate import TextGenerator


class WrittenText(NamedTuple):
    """A prompt and its generated continuation, as token ids."""

    source: Sequence[int]  # the encoder's input: the prompt; empty without an encoder
    tokens: Sequence[int]  # the decoder's sequence: the prompt (or the start token), and the output
    written: int  # the number of tokens of the output, at the end


def write_texts(generator: TextGenerator, prompts: Sequence[str]) -> list[WrittenText]:
    """Generate a continuation of each prompt, in batches of the generator's size.

    Raises `UsageError`, before generating, for a prompt that is longer than the models' limit.
    """
    generator.check(prompts)
    runs = track(generator.generate_many(prompts), "the large model is writing", total=len(prompts))
    return [WrittenText(run.state.source, (*run.state.start, *run.state.tokens), len(run.state.tokens)) for run in runs]
