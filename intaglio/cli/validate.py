"""`intaglio validate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from intaglio.cli.output import json_option, print_json, print_table
from intaglio.errors import UsageError

if TYPE_CHECKING:
    from intaglio.validate.results import Validated

EPILOG = """\b
Examples:
  intaglio validate minilm
  intaglio validate minilm-fp16 --against minilm --bisect
  intaglio validate minilm --data sentences.txt --report reports/
  intaglio validate gpt2-3bit --perplexity novel.txt --against gpt2
  intaglio validate t5-3bit --perplexity pairs.jsonl --against t5
"""


@click.command("validate", epilog=EPILOG)
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--against", help="pytorch (the source checkpoint), reference (ONNX's evaluator), or another bundle.")
@click.option("--data", type=click.Path(path_type=Path), help="A text file, one sentence a line, or an .npz of arrays.")
@click.option("--target", default="ort-cpu", show_default=True, help="What runs the bundle.")
@click.option("--bisect", is_flag=True, help="Find the first layer beyond its bound.")
@click.option("--samples", default=64, show_default=True, help="Sentences to run.")
@click.option("--batch-size", default=8, show_default=True, help="Sentences run at a time.")
@click.option("--max-abs", type=float, help="Bound on the absolute error, instead of the dtype's.")
@click.option("--cosine", type=float, help="Bound on the cosine, instead of the dtype's.")
@click.option(
    "--perplexity",
    type=click.Path(path_type=Path),
    help='A UTF-8 text, or for an encoder-decoder JSON lines {"prompt": ..., "reference": ...}: measure the perplexity '
    "on it instead.",
)
@click.option("--context", type=int, help="Tokens of each window of it.  [default: 1024, or what the model takes]")
@click.option("--stride", type=int, help="Tokens that each window goes on by.  [default: half of those]")
@click.option("--report", type=click.Path(path_type=Path), help="Directory of the reports, instead of the bundle's.")
@json_option
def validate_command(
    bundle: Path,
    against: str | None,
    data: Path | None,
    target: str,
    bisect: bool,
    samples: int,
    batch_size: int,
    max_abs: float | None,
    cosine: float | None,
    perplexity: Path | None,
    context: int | None,
    stride: int | None,
    report: Path | None,
    as_json: bool,
) -> int:
    """Compare BUNDLE with its source model, another bundle or another runtime, on real sentences.

    Writes a JSON and an HTML report. Exit code 1 when an output is beyond its bound. With --perplexity, that of a model
    which writes is measured on a text, and with --against BUNDLE its divergence from that one, as KL in nats a token.
    """
    from intaglio.validate import validate

    _check_alone(perplexity, data, bisect, max_abs, cosine)
    result = validate(
        bundle, against, data, target, bisect, report, max_abs, cosine, samples, batch_size, perplexity, context, stride
    )
    if as_json:
        print_json(result)
        return 0 if result.passed else 1
    if perplexity:
        _show_perplexity(result, bundle, perplexity)
        return 0 if result.passed else 1
    rows = [
        (name, error.max_abs, error.mean_abs, error.relative, error.cosine, error.bound, error.passed)
        for name, error in result.outputs.items()
    ]
    columns = ["output", "max |error|", "mean |error|", "relative", "cosine", "bound", "passed"]
    print_table(f"{bundle} on {target} against {against or 'pytorch'}", columns, rows)
    if result.not_compared:
        click.echo(f"Not compared, as the other end does not have it: {', '.join(result.not_compared)}")
    if bisect:
        first = result.first_layer_beyond
        found = f"{first.layer}: relative error {first.relative:.3g}, bound {first.bound:.3g}" if first else "none"
        click.echo(f"First layer beyond its bound: {found}")
    click.echo(f"{'Passed' if result.passed else 'FAILED'}. Report: {result.report}")
    return 0 if result.passed else 1


def _check_alone(
    perplexity: Path | None, data: Path | None, bisect: bool, max_abs: float | None, cosine: float | None
) -> None:
    """Refuse options that a perplexity has no use for."""
    options = {"--data": data, "--bisect": bisect or None, "--max-abs": max_abs, "--cosine": cosine}
    given = [name for name, value in options.items() if value is not None]
    if perplexity is not None and given:
        raise UsageError(f"--perplexity measures one text and judges nothing: leave out {', '.join(given)}.")


def _show_perplexity(result: Validated, bundle: Path, text: Path) -> None:
    rows = [("bundle", str(bundle)), ("text", str(text)), ("perplexity", f"{result.perplexity:.4f}")]
    if isinstance(result.against_perplexity, float):
        rows += [
            ("of the other", f"{result.against_perplexity:.4f}"),
            ("KL divergence", f"{result.kl_divergence:.6f} nats a token"),
            ("same first choice", f"{100 * float(result.same_top or 0):.2f} %"),
        ]
    rows.append(("tokens", f"{result.tokens:,}"))
    print_table("Perplexity", ["", ""], rows)
    click.echo(f"Report: {result.report}")
