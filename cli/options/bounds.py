"""The options of `export` and `validate` that set bounds."""

from __future__ import annotations

import click

from intaglio.cli.running.command import group
from intaglio.errors import UsageError


def _parse(context: click.Context, parameter: click.Parameter, texts: tuple[str, ...]) -> dict[str, float]:
    """Parse the NAME=VALUE of every `--bound` into a dict."""
    bounds = {}
    for text in texts:
        name, _, value = text.partition("=")
        try:
            bounds[name.strip().replace("-", "_")] = float(value)
        except ValueError as error:
            raise UsageError(f"--bound {text!r}: expected NAME=VALUE, such as --bound kl_divergence=0.01.") from error
    return bounds


bound_options = group(
    "Bounds",
    click.option("--max-abs", type=float, help="Maximum absolute error of an output."),
    click.option(
        "--min-cosine", type=float, help="Minimum cosine similarity of two embeddings, or of two vectors of an output."
    ),
    click.option(
        "--bound",
        multiple=True,
        metavar="NAME=VALUE",
        callback=_parse,
        help="Replace the default bound of a measure, e.g. kl_divergence=0.01. Can be repeated.",
    ),
)
