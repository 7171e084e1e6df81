"""A real text-to-text task: restore prose from its words alone.

The prose comes from Python's manual, docstrings and comments; its words come without punctuation and markup. The
ends of sentences and the marks of names and code have to be restored.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from python_text import Document, is_held_out

LEAST, MOST = 40, 240  # characters of a passage
LETTERS = 0.8  # of a paragraph's characters letters or spaces: prose, not a table or an example
PARAGRAPHS = re.compile(r"\n\s*\n")
COMMENTS = re.compile(r"(?:^[ \t]*#[ \t]?.*\n)+", re.MULTILINE)
SENTENCES = re.compile(r"(?<=[.!?:;]) ")


@dataclass(frozen=True)
class Pair:
    """Input and expected output."""

    words: str
    prose: str


def words_of(prose: str) -> str:
    """The words alone: every character that is no letter and no digit separates them."""
    return " ".join(re.findall(r"[^\W_]+", prose))


def paragraphs(documents: Sequence[Document]) -> list[str]:
    """The paragraphs of documents that are prose, each once, in one line."""
    found: dict[str, None] = {}
    for document in documents:
        for part in PARAGRAPHS.split(document.text):
            comments = [re.sub(r"(?m)^[ \t]*#[ \t]?", "", match) for match in COMMENTS.findall(f"{part}\n")]
            for text in comments or [part]:
                line = " ".join(text.split())
                if _is_prose(line):
                    found[line] = None
    return list(found)


def split_paragraphs(documents: Sequence[Document]) -> tuple[list[str], list[str]]:
    """The paragraphs to train on, and those held out; one that stands in both kinds of documents is trained on."""
    training = paragraphs([document for document in documents if not is_held_out(document.subject)])
    known = set(training)
    held_out = paragraphs([document for document in documents if is_held_out(document.subject)])
    return training, [text for text in held_out if text not in known]


def passages(paragraph: str) -> list[str]:
    """Every run of whole sentences of a paragraph that has `LEAST` to `MOST` characters."""
    sentences = SENTENCES.split(paragraph)
    runs = (
        " ".join(sentences[start:stop])
        for start in range(len(sentences))
        for stop in range(start + 1, len(sentences) + 1)
    )
    return [run for run in runs if LEAST <= len(run) <= MOST]


def pairs(texts: Sequence[str], seed: int) -> Iterator[Pair]:
    """A passage of each paragraph in random order; other passages and another order for another seed."""
    generator = np.random.default_rng(seed)
    for index in generator.permutation(len(texts)):
        if found := passages(texts[index]):
            prose = found[generator.integers(len(found))]
            yield Pair(words_of(prose), prose)


def _is_prose(line: str) -> bool:
    if len(line) < LEAST or line[-1] not in ".:!?" or not (line[0].isupper() or line[0] in "`*\"'"):
        return False
    return sum(character.isalpha() or character == " " for character in line) >= LETTERS * len(line)
