"""Showing generated text: as it is written, in the colours of who wrote it, and how it came about."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from intaglio.cli.output import has_styles

if TYPE_CHECKING:
    from intaglio.runtime.generation.generate import TextGenerator
    from intaglio.runtime.generation.generated import Generated
    from intaglio.runtime.generation.text_run import TextRun
    from intaglio.runtime.generation.trace import Passage

# What a terminal would obey instead of showing it: control characters but tab and line feed.
CONTROLS = {number: "\N{REPLACEMENT CHARACTER}" for number in (*range(32), *range(127, 160)) if number not in (9, 10)}

COLOURS = {"small": "green", "large": "blue"}

# Why a text ended -> what to say about it.
ENDS = {
    "eos": "The model ended the text.",
    "stop": "It came to a stop string.",
    "length": "More with --max-new-tokens.",
    "capacity": "The model takes no more tokens.",
    "interrupted": "Interrupted.",
}

# What drafts -> how often each model was called, and what became of the drafts.
CALLS = {
    "draft model": "{small} calls of the small model ({small_s:.2f} s), {large} of the large one ({large_s:.2f} s); "
    "{accepted} of {drafted} drafted tokens kept.",
    "early exit": "{small} calls of the early exit ({small_s:.2f} s), {large} of the whole model ({large_s:.2f} s); "
    "{accepted} of {drafted} drafted tokens kept.",
    "model": "{large} calls of the model, which drafts itself ({large_s:.2f} s); {accepted} of {drafted} drafted "
    "tokens kept.",
    "text": "{large} calls of the model ({large_s:.2f} s); {accepted} of {drafted} tokens kept that were copied from "
    "the text before.",
}


def show(piece: str) -> None:
    """Print a piece of text at once; on a terminal without the characters that it would obey."""
    # A pipe gets every character: with `color`, click takes no escape sequences out.
    click.echo(piece.translate(CONTROLS) if sys.stdout.isatty() else piece, nl=False, color=True)


def show_passage(passage: Passage) -> None:
    """Print text in the colour of who wrote it, or without colours between the marks of a word diff."""
    if not has_styles():
        marks = ("[-", "-]") if passage.rolled_back else ("{+", "+}") if passage.by == "large" else ("", "")
        show(passage.text.join(marks))
        return
    text, taken_back = passage.text.translate(CONTROLS), passage.rolled_back or None
    click.secho(text, nl=False, fg=COLOURS[passage.by], strikethrough=taken_back, dim=taken_back, color=True)


def show_trace(generator: TextGenerator, run: TextRun, result: Generated) -> None:
    """Print the text of `run` in the colours of who wrote it, and what was taken back where it stood."""
    from intaglio.runtime.generation.trace import passages

    for passage in passages(generator.tokenizer, run.prompt, result.trace, result.text):
        show_passage(passage)


def report_speed(generator: TextGenerator, result: Generated) -> None:
    """Print on standard error how fast a text was written, why it ended, and what drafting did."""
    click.echo(
        f"{len(result.tokens)} tokens, {result.tokens_per_second:.1f} a second, after a prompt of "
        f"{result.prompt_tokens} in {result.prompt_seconds:.2f} s. {ENDS[result.stopped]}",
        err=True,
    )
    if generator.draft_source is not None and (result.calls.small or result.acceptance is not None):
        calls = CALLS[generator.draft_source].format(
            small=result.calls.small,
            large=result.calls.large,
            small_s=result.seconds_in.small,
            large_s=result.seconds_in.large,
            accepted=result.accepted,
            drafted=result.accepted + result.rolled_back,
        )
        click.echo(calls, err=True)
    if result.blocks is not None:
        click.echo(f"A token went through {result.blocks:.1f} blocks of the model on average.", err=True)
