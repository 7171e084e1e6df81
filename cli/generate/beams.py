"""The options of beam search, which `generate` has beside its strategies."""

from __future__ import annotations

import click
from click.core import ParameterSource

from intaglio.cli.running.command import group
from intaglio.errors import UsageError

SEARCH = ("length_penalty", "no_repeat_ngram", "min_new_tokens", "early_stopping")
# What else may be given with --beams: the prompts, the length, and where it runs.
BESIDE = {
    *("bundle", "prompts", "files", "data", "chat", "system", "messages", "source_language", "target_language"),
    *("max_new_tokens", "batch", "target", "threads", "as_json", "quiet", "verbose", "beams", *SEARCH),
}

beam_options = group(
    "Beam search",
    click.option("--beams", type=click.IntRange(1), help="Extend so many texts at a time, and return the most likely."),
    click.option(
        "--length-penalty",
        type=float,
        help="Divide log-probabilities by the length to this power: above 0 longer texts.  [default: 1.0]",
    ),
    click.option(
        "--no-repeat-ngram", type=int, help="No sequence of so many tokens occurs twice.  [default: they may]"
    ),
    click.option("--min-new-tokens", type=int, help="No end token before so many tokens.  [default: 0]"),
    click.option("--early-stopping", is_flag=True, help="End when as many texts as beams have ended."),
)


def check_beams(beams: int | None) -> None:
    """Raise `UsageError` for options of beam search without `--beams`, and for others that it does not have."""
    context = click.get_current_context()
    given = [
        parameter
        for parameter in context.command.params
        if context.get_parameter_source(str(parameter.name)) is ParameterSource.COMMANDLINE
    ]
    for parameter in given:
        if beams is None and parameter.name in SEARCH:
            raise UsageError(f"{parameter.opts[0]} is of beam search. Add --beams, such as --beams 4.")
        if beams is not None and parameter.name not in BESIDE:
            raise UsageError(f"{parameter.opts[0]} does not apply to beam search. Leave it or --beams out.")
