"""`intaglio tune-decoding`."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from intaglio.cli.output import force_option, json_option, number_of, print_json, print_table, size
from intaglio.errors import UsageError
from intaglio.targets import DEFAULT

EPILOG = """\b
Examples:
  intaglio tune-decoding llama --draft small-llama --data questions.jsonl
  intaglio tune-decoding t5 --draft small-t5 --data validation.jsonl --loss 1 --picture curve.svg
  intaglio tune-decoding t5 --draft small-t5 --data validation.jsonl --fallback 0.6 --fallback 0.8 --rollback 2
  intaglio tune-decoding llama-exit --early-exit --data questions.jsonl
"""


@click.command("tune-decoding", epilog=EPILOG)
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--draft", type=click.Path(path_type=Path), help="The smaller decoder.")
@click.option("--early-exit", is_flag=True, help="Instead of it, the model's own first blocks, trained for that.")
@click.option(
    "--data",
    required=True,
    type=click.Path(path_type=Path),
    help='JSON lines {"prompt": ..., "reference": ...}; without references, the large model\'s texts are the aim.',
)
@click.option("--loss", default=0.0, show_default=True, help="Points of the metric, of 100, that may be lost.")
@click.option(
    "--metric",
    type=click.Choice(["bleu", "rouge_1", "rouge_2", "rouge_l"]),
    default="bleu",
    show_default=True,
    help="What quality is.",
)
@click.option("--fallback", multiple=True, type=float, help="Thresholds to try.  [default: 0.3, 0.5, 0.7, 0.8, 0.9]")
@click.option("--rollback", multiple=True, type=float, help="Thresholds to try.  [default: 1, 2, 3, 5, 10]")
@click.option("--max-draft", default=10, show_default=True, help="Tokens between two reviews.")
@click.option("-n", "--max-new-tokens", default=128, show_default=True, help="Tokens of a text at most.")
@click.option("--texts", type=click.IntRange(min=1), help="Take so many lines of the file.  [default: all]")
@click.option("--target", default=DEFAULT, show_default=True, help="What runs the models.")
@click.option("--threads", type=click.IntRange(min=1), help="Processor threads, for ort-cpu.  [default: all]")
@click.option("--picture", type=click.Path(path_type=Path), help="Draw quality over speed there, as SVG.")
@force_option
@json_option
def tune_decoding_command(
    bundle: Path,
    draft: Path | None,
    early_exit: bool,
    data: Path,
    loss: float,
    metric: str,
    fallback: tuple[float, ...],
    rollback: tuple[float, ...],
    max_draft: int,
    max_new_tokens: int,
    texts: int | None,
    target: str,
    threads: int | None,
    picture: Path | None,
    force: bool,
    as_json: bool,
) -> None:
    """Find the thresholds with which BiLD writes fastest on texts like those of --data, at no loss or a given one.

    BUNDLE is the large model. Every text is written by it alone, by speculative sampling, and by BiLD with every pair
    of thresholds.
    """
    from intaglio.files import check_output_file
    from intaglio.validate.tune_decoding import FALLBACKS, ROLLBACKS, tune_decoding

    if (draft is None) != early_exit:
        raise UsageError("expected one of --draft BUNDLE and --early-exit, which says what drafts.")
    if picture is not None:
        check_output_file(picture, force, "--picture")
    result = tune_decoding(
        bundle, draft, data, loss, metric, fallback or FALLBACKS, rollback or ROLLBACKS, max_draft, max_new_tokens,
        texts, target, threads,
    )  # fmt: skip
    if picture is not None:
        from intaglio.files import atomic_write
        from intaglio.validate.tune_decoding_picture import picture as draw

        atomic_write(picture, draw(result).encode())
    if as_json:
        print_json(result)
        return
    columns = [
        "strategy", "fallback", "rollback", metric, "ms a text", "speedup", "large calls", "taken back",
        "bytes a token", "operations a token", "operations a byte",
    ]  # fmt: skip
    rows = [
        (each.strategy, _cell(each.fallback), _cell(each.rollback), f"{getattr(each.quality, metric):.2f}",
         1e3 * each.seconds, f"{each.speedup:.2f}", each.large_calls, each.rollbacks, size(int(each.work.bytes)),
         each.work.operations, each.work.intensity)
        for each in sorted(result.settings, key=lambda each: each.seconds)
    ]  # fmt: skip
    print_table(
        f"{number_of(result.texts, 'texts')}, {metric} against {result.reference}; calls and work for a token",
        columns,
        rows,
        may_drop=["operations a byte", "operations a token", "bytes a token", "taken back", "large calls"],
    )
    command = f"intaglio generate {shlex.quote(str(bundle))} {result.options}"
    click.echo(f"The fastest that loses at most {loss:g} points: {command}")
    if picture is not None:
        click.echo(f"picture: {picture}")


def _cell(threshold: float | None) -> str:
    return "" if threshold is None else f"{threshold:g}"
