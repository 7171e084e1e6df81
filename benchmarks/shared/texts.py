"""Real English for the benchmarks: texts to calibrate on, other texts to judge by, and full blocks of tokens.

All of it comes with Python and with Intaglio: the paragraphs of Python's reference manual, docstrings of the
standard library, and Intaglio's own sentences (which are from the manual too, so the paragraphs that hold one are
never calibrated on).
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import numpy.typing as npt

from intaglio.runtime.text.tokenizer import Tokenizer
from intaglio.samples.sentences import sentences

# Modules of pure Python with much prose in their docstrings.
MODULES = (
    *("argparse", "decimal", "difflib", "email.message", "fractions", "ipaddress", "optparse", "pathlib", "pdb"),
    *("random", "shutil", "smtplib", "statistics", "subprocess", "tarfile", "textwrap", "turtle", "zipfile"),
)


def calibration_texts(count: int = 64) -> list[str]:
    """`count` paragraphs of 15 to 120 words, evenly from the whole manual."""
    judged = sentences()
    return evenly([text for text in _paragraphs() if not any(sentence in text for sentence in judged)], count)


def evaluation_texts(docstrings: int = 64) -> list[str]:
    """Intaglio's 96 sentences, and the first paragraphs of `docstrings` docstrings, of 8 to 60 words."""
    return sentences() + evenly(_docstrings(), docstrings)


def short_sentences() -> list[str]:
    """200 sentences of 2 to 27 words about everyday life, unlike what is calibrated on."""
    lines = (Path(__file__).parent / "short_sentences.txt").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if not line.startswith("#")]


def token_block(tokenizer: Tokenizer, batch: int, sequence: int) -> dict[str, npt.NDArray[np.int64]]:
    """Model inputs of int64 [batch, sequence], every position a token of running text: no padding."""
    texts = _paragraphs()
    first, *_, last = tokenizer.feeds(texts[:1])["input_ids"][0]
    words = [token for text in texts for token in tokenizer.feeds([text], truncate=True)["input_ids"][0][1:-1]]
    block = np.resize(np.array(words, dtype=np.int64), (batch, sequence))
    block[:, 0], block[:, -1] = first, last
    constant = {"attention_mask": 1, "token_type_ids": 0}
    return {
        name: block if name == "input_ids" else np.full((batch, sequence), constant[name], dtype=np.int64)
        for name in tokenizer.inputs
    }


def evenly(items: Sequence[str], count: int) -> list[str]:
    """`count` of `items` in their order, at even distances."""
    assert len(items) >= count, f"{count} texts asked for, {len(items)} found"
    return [items[index * len(items) // count] for index in range(count)]


def _paragraphs() -> list[str]:
    found = (" ".join(text.split()) for _, topic in sorted(topics.items()) for text in topic.split("\n\n"))
    prose = (text for text in found if text[:1].isupper() and text.endswith("."))
    return [text for text in dict.fromkeys(prose) if 15 <= len(text.split()) <= 120]


def _docstrings() -> list[str]:
    found = []
    for module in MODULES:
        spec = importlib.util.find_spec(module)
        assert spec is not None
        assert spec.origin is not None
        for node in ast.walk(ast.parse(Path(spec.origin).read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                text = (ast.get_docstring(node) or "").split("\n\n")[0]
                found.append(" ".join(text.split()))
    prose = (text for text in found if text[:1].isupper() and text.endswith("."))
    return [text for text in dict.fromkeys(prose) if 8 <= len(text.split()) <= 60]
