"""`intaglio run` of a model that finds parts of texts: its options, and its results as tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from intaglio.cli.printing.printable import printable
from intaglio.cli.printing.results import print_table, say
from intaglio.cli.running.command import gathered, section

if TYPE_CHECKING:
    from intaglio.runtime.text.span_options import SpanOptions
    from intaglio.runtime.text.tasks import Ran

TITLE = 70  # characters of a text that are its table's title


def _span_options(**given: Any) -> SpanOptions:
    from intaglio.runtime.text.span_options import SpanOptions

    return SpanOptions(**given)


# The options of spans and answers, which a command gets as `spans`.
span_flags = gathered(
    "spans",
    _span_options,
    section("Spans and answers"),
    click.option(
        "--aggregation", help="How tokens become spans: none, simple, first, average, max.  [default: simple]"
    ),
    click.option("--stride", type=int, help="Tokens that the windows of a long text share."),
    click.option("--no-answer", is_flag=True, help="Let a question have no answer."),
    click.option("--max-answer-tokens", type=int, help="Maximum tokens of an answer.  [default: 15]"),
)


def print_spans(result: Ran) -> None:
    """Print the spans of a text, or the answers to a question from it, as a table."""
    title = result.text if len(result.text) <= TITLE else f"{result.text[: TITLE - 1]}…"
    rows: list[list[object]]
    if result.answers is not None:
        columns = ["answer", "score", "start", "end"]
        rows = [[each.answer or "(none)", each.score, each.start, each.end] for each in result.answers]
    else:
        columns = ["class", "text", "score", "start", "end"]
        rows = [
            [each.label, result.text[each.start : each.end], each.score, each.start, each.end]
            for each in result.spans or ()
        ]
    if rows:
        print_table(title, columns, rows)
    else:
        say(f"{printable(title)}: nothing found")
