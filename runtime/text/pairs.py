"""Pairs of texts that a model reads together, such as a question and a document: from a file, or of those that ship."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from intaglio.bundle.manifest import Manifest
from intaglio.errors import UsageError, one_line
from intaglio.files.input_files import read_text, text_lines
from intaglio.runtime.text.tokenizer import Pair
from intaglio.samples.sentences import sentences

SUFFIX = ".jsonl"
NEXT_SENTENCE = "ForNextSentencePrediction"  # the end of the name of such a class
SHIPPED = 8  # documents of each query


class Documents(msgspec.Struct, forbid_unknown_fields=True):
    """A line of a file: a query, and the documents that are read with it."""

    query: str
    documents: list[str]


def reads_pairs(task: str, architecture: str, labels: Sequence[str]) -> bool:
    """Whether a model was trained on pairs: for answers, for what follows, or (one class) to rank documents."""
    ranks = task == "classify" and len(labels) == 1
    return task == "question-answering" or ranks or architecture.endswith(NEXT_SENTENCE)


def takes_pairs(manifest: Manifest) -> bool:
    """The same of a bundle."""
    return manifest.pair is not None or reads_pairs(manifest.task, manifest.architecture, manifest.labels)


def read_documents(path: Path, option: str) -> list[Documents]:
    """The queries of a file with one JSON object a line: {"query": "...", "documents": ["...", ...]}.

    Raises `UsageError` with the number of a line that is not one, and for a file without any.
    """
    found = []
    for number, line in enumerate(text_lines(read_text(path, option)), 1):
        if not line.strip():
            continue
        where = f"{option} {path}, line {number}"
        try:
            each = msgspec.json.decode(line, type=Documents)
        except (msgspec.DecodeError, RecursionError) as error:
            raise UsageError(
                f'{where}: {one_line(error, 120)}. Expected {{"query": "...", "documents": ["...", ...]}}.'
            ) from error
        if not each.query.strip():
            raise UsageError(f"{where}: query is empty, expected a text. Write one.")
        if not each.documents:
            raise UsageError(f"{where}: documents is an empty list, expected at least one text. Add one.")
        found.append(each)
    if not found:
        raise UsageError(f"{option} {path}: has no queries. Write one JSON object a line.")
    return found


def shipped_documents() -> list[Documents]:
    """Sentences as queries, each with those that follow."""
    texts = sentences()
    return [
        Documents(texts[start], texts[start + 1 : start + 1 + SHIPPED])
        for start in range(0, len(texts) - SHIPPED, SHIPPED + 1)
    ]


def pairs_of(lines: Sequence[Documents], samples: int, batch_size: int) -> list[list[Pair]]:
    """The first `samples` pairs in batches of at most `batch_size`, each of one query."""
    batches, left = [], samples
    for line in lines:
        for start in range(0, len(line.documents), batch_size):
            batch = [Pair(line.query, text) for text in line.documents[start : start + min(batch_size, left)]]
            left -= len(batch)
            batches += [batch] if batch else []
            if not left:
                return batches
    return batches
