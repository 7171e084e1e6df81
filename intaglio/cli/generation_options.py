"""The options of `generate` and `chat`: who drafts, how tokens are chosen, where a text ends, what runs the models."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from intaglio.targets import DEFAULT, summary

OPTIONS: tuple[Callable[[Any], Any], ...] = (
    click.option(
        "--strategy",
        help="greedy, sample, bild, speculative, ngram, hidden-transfer, medusa, calm, auto.  [default: auto with "
        "--draft or --early-exit; else sample with sampling options, else greedy]",
    ),
    click.option("--draft", type=click.Path(path_type=Path), help="The smaller decoder, for auto, bild, speculative."),
    click.option("--early-exit", is_flag=True, help="Instead of it, the model's own first blocks, trained for that."),
    click.option(
        "--fallback",
        type=float,
        help="bild: fall back to the large model below this confidence.  [default: 0.5]",
    ),
    click.option(
        "--rollback",
        type=float,
        help="bild: a token is taken back beyond this distance, in nats; or inf.  [default: 2]",
    ),
    click.option("--max-draft", type=int, help="bild: tokens between two reviews of the large model.  [default: 10]"),
    click.option(
        "--window", type=int, help="speculative, ngram: tokens drafted at a time.  [default: adaptive; at most 10]"
    ),
    click.option(
        "--ngram",
        type=int,
        help="ngram, hidden-transfer, medusa: last tokens to look for in the text before.  [default: 6]",
    ),
    click.option("--tree", type=int, help="hidden-transfer, medusa: tokens drafted at a time.  [default: 8]"),
    click.option(
        "--least",
        type=float,
        help="ngram, hidden-transfer, medusa: minimum probability of a draft.  [default: 0.05]",
    ),
    click.option("--origins", type=int, help="hidden-transfer, medusa: draft positions.  [default: 1]"),
    click.option("--typical", type=float, help="hidden-transfer, medusa: take tokens as likely as this, too."),
    click.option(
        "--saturation",
        type=float,
        help="calm: how alike a state stays for its token to leave.  [default: 0.9]",
    ),
    click.option("--decay", type=float, help="calm: how fast that becomes less strict in a text.  [default: 4]"),
    click.option("-n", "--max-new-tokens", default=256, show_default=True, help="Tokens to write at most."),
    click.option(
        "--temperature", type=float, help="Divides the logits: below 1 is safer, above 1 bolder.  [default: 1.0]"
    ),
    click.option("--top-k", type=int, help="Sample from the k most probable tokens only."),
    click.option("--top-p", type=float, help="Sample from the fewest tokens whose probabilities add up to it."),
    click.option("--min-p", type=float, help="Sample from tokens of at least this part of the highest probability."),
    click.option(
        "--repetition-penalty", default=1.0, show_default=True, help="Above 1: make tokens that occurred rarer."
    ),
    click.option("--seed", type=int, help="The same seed gives the same text, but with auto."),
    click.option("--stop", multiple=True, help="End the text before this string. May be given several times."),
    click.option("--ignore-eos", is_flag=True, help="Go on after the token that ends a text."),
    click.option("--target", default=DEFAULT, show_default=True, help=f"What runs it: {summary()}."),
    click.option("--threads", type=click.IntRange(1), help="Processor threads, for ort-cpu.  [default: all]"),
)


def generation_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command all of `OPTIONS`, in their order; it gets them as the arguments of `TextGenerator`."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command
