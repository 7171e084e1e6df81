"""`intaglio run` of a file of queries with their documents."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from intaglio.cli.printing.printable import printable
from intaglio.cli.printing.results import say, style
from intaglio.errors import UsageError

if TYPE_CHECKING:
    from intaglio.runtime.text.pairs import Documents
    from intaglio.runtime.text.tasks import Ran
    from intaglio.runtime.text.tokenizer import Pair


def documents_of(texts: tuple[str, ...], file: Path | None, query: str | None) -> list[Documents] | None:
    """The queries of --input FILE.jsonl with their documents; None for other inputs. Raises `UsageError`."""
    from intaglio.runtime.text.pairs import SUFFIX, read_documents

    if file is None or file.suffix != SUFFIX:
        return None
    if texts or query is not None:
        option = "texts were" if texts else "--query was"
        raise UsageError(f"{option} given beside --input {file}, which has queries and documents. Use one of the two.")
    return read_documents(file, "--input")


def pairs_of(lines: Sequence[Documents]) -> list[Pair]:
    """Each query with each of its documents."""
    from intaglio.runtime.text.tokenizer import Pair

    return [Pair(line.query, text) for line in lines for text in line.documents]


def in_order(results: Iterator[Ran], query: str | None, lines: Sequence[Documents] | None) -> Iterator[Ran]:
    """The results, those of a reranker by relevance, the best first; those of `lines` under their queries."""
    for line in lines or ():
        say(style(printable(line.query), bold=True))
        yield from _ranked(islice(results, len(line.documents)))
    yield from results if query is None else _ranked(results)


def _ranked(results: Iterator[Ran]) -> list[Ran]:
    """Sort by relevance, the largest first; texts of a model with several classes keep their order."""
    return sorted(results, key=lambda result: -(result.relevance or 0.0))
