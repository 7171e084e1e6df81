"""Split the text of a trace into passages by author."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from intaglio.runtime.generation.text.stream import TextStream
from intaglio.runtime.strategies import Emitted

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class Passage(NamedTuple):
    """Text of consecutive tokens of one author."""

    text: str
    by: str  # "small" or "large"
    rolled_back: bool  # drafted in this place, and rejected


def passages(tokenizer: Tokenizer, prompt: Sequence[int], trace: Sequence[Emitted], text: str) -> Iterator[Passage]:
    """Yield the passages of `text`, generated after `prompt` (token ids), with the rejected drafts in between.

    The passages that were not rolled back add up to `text`; a stop string or end token is in none of them. A character
    whose bytes are in tokens of two authors belongs to the second.
    """
    stream, left, author = TextStream(tokenizer, prompt), len(text), "large"
    for (by, rolled_back), group in groupby(trace, key=lambda written: written[1:]):
        tokens = [written.token for written in group]
        if rolled_back:
            branch = stream.branch()
            piece = "".join(map(branch.push, tokens)) + branch.finish()
        else:
            piece = "".join(map(stream.push, tokens))[:left]
            left, author = left - len(piece), by
        if piece:
            yield Passage(piece, by, rolled_back)
    if rest := stream.finish()[:left]:
        yield Passage(rest, author, False)
