"""The options of `generate` and `chat`: drafting, sampling, stopping, and the runtime."""

from __future__ import annotations

from collections.abc import Mapping

import click

from intaglio.cli.options.choices import BUNDLE, OneOf
from intaglio.cli.options.runtime import cache_bits_option, target_option, threads_option
from intaglio.cli.running.command import Decorator, group
from intaglio.errors import UsageError
from intaglio.runtime.generation.requests.strategy_choice import with_draft
from intaglio.runtime.strategies import STRATEGIES
from intaglio.runtime.strategies.options import StrategyOption, options_by_name


def strategy_options() -> list[Decorator]:
    """Return one option for each field name of the strategies, as their dataclasses declare it."""
    made = []
    for name, strategies in options_by_name(STRATEGIES).items():
        kind = next(iter(strategies.values())).kind
        made.append(click.option(f"--{name.replace('_', '-')}", type=kind, help=_help(strategies)))
    return made


def _help(strategies: Mapping[str, StrategyOption]) -> str:
    """Return which strategies take an option and its meaning, grouped by meaning, with the default once."""
    meanings: dict[str, list[str]] = {}
    for name, each in strategies.items():
        meanings.setdefault(each.meaning, []).append(name)
    text = "; ".join(f"{', '.join(names)}: {meaning}" for meaning, names in meanings.items())
    defaults = dict.fromkeys(each.default for each in strategies.values() if each.default is not None)
    return f"{text}.  [default: {', '.join(f'{each:g}' for each in defaults)}]" if defaults else f"{text}."


drafting_options = group(
    "Strategy",
    click.option(
        "--strategy",
        type=OneOf(STRATEGIES, "NAME"),
        help=f"{', '.join(STRATEGIES)}.  [default: auto with --draft or --early-exit; sample with a sampling "
        "option; otherwise greedy]",
    ),
    click.option("--draft", type=BUNDLE, help=f"Bundle of the draft model, for {', '.join(with_draft())}."),
    click.option("--early-exit", is_flag=True, help="Draft with the model's own first blocks (see train early-exit)."),
    *strategy_options(),
)
sampling_options = group(
    "Sampling",
    click.option(
        "--temperature", type=float, help="Divides the logits: below 1 less random, above 1 more.  [default: 1.0]"
    ),
    click.option("--top-k", type=int, help="Sample only from the k most probable tokens."),
    click.option(
        "--top-p", type=float, help="Sample only from the smallest set of tokens with this total probability."
    ),
    click.option(
        "--min-p", type=float, help="Sample only from tokens with at least this fraction of the top probability."
    ),
    click.option("--repetition-penalty", default=1.0, help="Above 1: make tokens less likely that have occurred."),
    click.option(
        "--presence-penalty", default=0.0, help="Above 0: make generated tokens less likely, once per token; -2 to 2."
    ),
    click.option(
        "--frequency-penalty",
        default=0.0,
        help="Above 0: make generated tokens less likely, once per occurrence; -2 to 2.",
    ),
    click.option("--seed", type=int, help="Random seed. The same seed gives the same text, except with strategy auto."),
)
stopping_options = group(
    "End of the text",
    click.option("-n", "--max-new-tokens", default=256, help="Maximum number of new tokens."),
    click.option("--stop", multiple=True, help="Stop before this string. Can be repeated."),
    click.option("--ignore-eos", is_flag=True, help="Continue after the end token."),
)


def _at_most_one(context: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
    """The value of an option that the library takes several of."""
    if len(given) > 1:
        raise UsageError(
            f"--adapter is given {len(given)} times, expected once. To choose one for each request, use: intaglio serve"
        )
    return given


adapter_option = click.option(
    "--adapter",
    multiple=True,
    metavar="[NAME=]DIR",
    callback=_at_most_one,
    help="Folder of a LoRA adapter to add beside the weights.",
)
generation_options = group(
    "Options",
    adapter_option,
    drafting_options,
    sampling_options,
    stopping_options,
    target_option(),
    threads_option(),
    cache_bits_option(),
)
