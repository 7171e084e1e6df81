"""Showing generated text: streamed, in colours by the model that wrote it, and its statistics."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from intaglio.cli.printing.results import has_styles, notice

if TYPE_CHECKING:
    from intaglio.runtime.generation.generate import TextGenerator
    from intaglio.runtime.generation.scheduling.generated import Generated
    from intaglio.runtime.generation.text.authors import Passage
    from intaglio.runtime.generation.text_run import TextRun

# Control characters except tab and line feed: a terminal would act on them instead of showing them.
CONTROLS = {number: "\N{REPLACEMENT CHARACTER}" for number in (*range(32), *range(127, 160)) if number not in (9, 10)}

COLOURS = {"small": "green", "large": "blue"}

# Why a text ended -> the message.
ENDS = {
    "eos": "The text is complete (end token, or end of the grammar).",
    "stop": "Stopped at a stop string.",
    "length": "Stopped at --max-new-tokens.",
    "capacity": "Stopped at the model's maximum length.",
    "interrupted": "Interrupted.",
}

# Source of the drafts -> calls of each model, and accepted drafts.
CALLS = {
    "draft model": "{small} calls of the small model ({small_s:.2f} s), {large} of the large model ({large_s:.2f} s); "
    "{accepted} of {drafted} draft tokens accepted.",
    "early exit": "{small} calls of the early exit ({small_s:.2f} s), {large} of the whole model ({large_s:.2f} s); "
    "{accepted} of {drafted} draft tokens accepted.",
    "model": "{large} calls of the model, which drafts itself ({large_s:.2f} s); {accepted} of {drafted} draft "
    "tokens accepted.",
    "text": "{large} calls of the model ({large_s:.2f} s); {accepted} of {drafted} draft tokens accepted, copied from "
    "the text so far.",
}


def show(piece: str) -> None:
    """Print a piece of text at once; on a terminal, without control characters."""
    # A pipe gets every character: with `color`, click does not strip escape sequences.
    click.echo(piece.translate(CONTROLS) if sys.stdout.isatty() else piece, nl=False, color=True)


def show_passage(passage: Passage) -> None:
    """Print text in the colour of the model that wrote it; without colours, between the marks of a word diff."""
    if not has_styles():
        marks = ("[-", "-]") if passage.rolled_back else ("{+", "+}") if passage.by == "large" else ("", "")
        show(passage.text.join(marks))
        return
    text, taken_back = passage.text.translate(CONTROLS), passage.rolled_back or None
    click.secho(text, nl=False, fg=COLOURS[passage.by], strikethrough=taken_back, dim=taken_back, color=True)


def show_trace(generator: TextGenerator, run: TextRun, result: Generated) -> None:
    """Print the text of `run` in colours by the model that wrote it, rejected drafts included."""
    from intaglio.runtime.generation.text.authors import passages

    for passage in passages(generator.tokenizer, run.prompt, result.trace, result.text):
        show_passage(passage)


def report_speed(generator: TextGenerator, result: Generated) -> None:
    """Print on standard error the speed of a text, why it ended, and the statistics of drafting."""
    notice(
        f"{len(result.tokens)} tokens, {result.tokens_per_second:.1f} per second, after a prompt of "
        f"{result.prompt_tokens} tokens in {result.prompt_seconds:.2f} s. {ENDS[result.stopped]}"
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
        notice(calls)
    if result.blocks is not None:
        notice(f"On average a token ran through {result.blocks:.1f} blocks of the model.")
