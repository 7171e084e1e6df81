"""The options of `generate` and `chat`: who drafts, how tokens are chosen, where a text ends, what runs the models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from intaglio.runtime.strategies import STRATEGIES
from intaglio.runtime.strategies.options import StrategyOption, options_by_name
from intaglio.targets import DEFAULT, summary


def strategy_options() -> list[Callable[[Any], Any]]:
    """An option for every name that a strategy has a field of, as its dataclass declares it."""
    made = []
    for name, strategies in options_by_name(STRATEGIES).items():
        kind = next(iter(strategies.values())).kind
        made.append(click.option(f"--{name.replace('_', '-')}", type=kind, help=_help(strategies)))
    return made


def _help(strategies: Mapping[str, StrategyOption]) -> str:
    """Which strategies take an option, and what for; those with the same words together, and the default once."""
    meanings: dict[str, list[str]] = {}
    for name, each in strategies.items():
        meanings.setdefault(each.meaning, []).append(name)
    said = "; ".join(f"{', '.join(names)}: {meaning}" for meaning, names in meanings.items())
    defaults = dict.fromkeys(each.default for each in strategies.values() if each.default is not None)
    return f"{said}.  [default: {', '.join(f'{each:g}' for each in defaults)}]" if defaults else f"{said}."


OPTIONS: tuple[Callable[[Any], Any], ...] = (
    click.option(
        "--strategy",
        help=f"{', '.join(STRATEGIES)}.  [default: auto with --draft or --early-exit; else sample with sampling "
        "options, else greedy]",
    ),
    click.option("--draft", type=click.Path(path_type=Path), help="The smaller decoder, for auto, bild, speculative."),
    click.option("--early-exit", is_flag=True, help="Instead of it, the model's own first blocks, trained for that."),
    *strategy_options(),
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
