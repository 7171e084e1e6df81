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
    texts = []
    starts = range(0, len(prompts), generator.batch)
    for start in track(starts, "the large model is writing", total=len(starts)):
        batch = generator.write_batch(prompts[start : start + generator.batch])
        for run, result in zip(batch.texts, batch.whole(), strict=True):
            texts.append(WrittenText(run.text.source, tuple(run.text.tokens), len(result.tokens)))
    return texts
