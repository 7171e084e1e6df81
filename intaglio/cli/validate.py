"""`intaglio validate`."""

from __future__ import annotations

from pathlib import Path

import click

from intaglio.cli.output import json_option, print_json, print_table

EPILOG = """\b
Examples:
  intaglio validate minilm
  intaglio validate minilm-fp16 --against minilm --bisect
  intaglio validate minilm --data sentences.txt --report reports/
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
    report: Path | None,
    as_json: bool,
) -> int:
    """Compare BUNDLE with its source model, another bundle or another runtime, on real sentences.

    Writes a JSON and an HTML report. Exit code 1 when an output is beyond its bound.
    """
    from intaglio.validate import validate

    result = validate(bundle, against, data, target, bisect, report, max_abs, cosine, samples, batch_size)
    if as_json:
        print_json(result)
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
