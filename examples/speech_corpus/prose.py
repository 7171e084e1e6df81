"""The sentences that can be read aloud of Markdown, plain text, or what Python files say in their docstrings.

Code, tables, abbreviations and links are left out.

    PYTHONPATH=examples python -m speech_corpus.prose FILE... > sentences.txt

prints them, one a line, each once; `sentences.txt` beside this file was made so.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from intaglio.training import spoken

FEWEST, MOST = 3, 14  # words of a sentence

_FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_PARAGRAPHS = re.compile(r"\n\s*\n")
_LINK = re.compile(r"!?\[([^]]*)\]\([^)]*\)")
_ITEM = re.compile(r"(?m)^\s*(?:[-*+]|\d+\.)\s+")
_SENTENCES = re.compile(r"(?<=[.!?])[\"')*]*\s+")
_CLAUSES = re.compile(r"[,;:()]+\s+|\s+[(–—]|\s-+\s")
# A word, a possessive, a hyphenated word or a number, with the punctuation that may stand around it.
_PLAIN = re.compile(r"[\"'(]*(?:[A-Z]?[a-z]+(?:['-][A-Za-z]?[a-z]+)*|[AI]|\d[\d,]*(?:\.\d+)?%?)[\"')]*[.,;:!?]*[\"')]*")
_DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef  # what can have a docstring
_ABBREVIATIONS = {"cf", "eg", "etc", "ie", "vs"}


def sentences(text: str) -> Iterator[str]:
    """The sentences of `text` in words as spoken, `FEWEST` to `MOST` words each, in order.

    A longer sentence is split at its commas, semicolons, colons, brackets and dashes. What holds code, symbols,
    abbreviations or words without a vowel is left out.
    """
    for paragraph in _PARAGRAPHS.split(_FENCED.sub("\n\n", text)):
        if paragraph.lstrip().startswith(("|", "#", "<", ">>>")):
            continue
        for item in _ITEM.split(paragraph):
            line = _LINK.sub(r"\1", " ".join(item.split())).replace("`", "").replace("**", "").replace("’", "'")
            for sentence in _SENTENCES.split(line):
                yield from _readable(sentence)


def unique(texts: Iterable[str]) -> list[str]:
    """The sentences of `texts`, each once, in order."""
    return list(dict.fromkeys(sentence for text in texts for sentence in sentences(text)))


def texts(path: Path) -> Iterator[str]:
    """The text of a file; of a Python file its docstrings, and its other strings of several lines."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        yield text
        return
    tree = ast.parse(text)
    bodies = [node.body for node in ast.walk(tree) if isinstance(node, _DOCUMENTED) and node.body]
    first = {id(body[0].value) for body in bodies if isinstance(body[0], ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and (id(node) in first or "\n" in node.value):
            yield inspect.cleandoc(node.value)


def _readable(sentence: str) -> Iterator[str]:
    parts = [sentence] if len(sentence.split()) <= MOST else _CLAUSES.split(sentence)
    for part in parts:
        if all(_PLAIN.fullmatch(token) for token in part.split()):
            words = spoken(part).split()
            if FEWEST <= len(words) <= MOST and all(_pronounceable(word) for word in words):
                yield " ".join(words)


def _pronounceable(word: str) -> bool:
    return word not in _ABBREVIATIONS and any(letter in "aeiouy" for letter in word)


if __name__ == "__main__":
    for sentence in unique(text for name in sys.argv[1:] for text in texts(Path(name))):
        print(sentence)
