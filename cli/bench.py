"""`intaglio bench`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from intaglio.cli.options.choices import BUNDLE_OR_NAME, PATH, OneOf
from intaglio.cli.options.generation import generation_options
from intaglio.cli.printing.results import force_option, json_option, number_of, print_json, print_table, say, size
from intaglio.cli.running.command import OUTPUT, section, verb

if TYPE_CHECKING:
    from intaglio.validation.bench.results import Bench, LoadResult, Percentiles, SubjectResult

EPILOG = """\b
Examples:
  intaglio bench gpt2
  intaglio bench gpt2-lut --baseline gpt2 --concurrency 1 --concurrency 8 --prompt-tokens 512 -n 64
  intaglio bench llama --draft small-llama --strategy speculative --baseline llama --data questions.jsonl
  intaglio bench minilm-int8 --baseline minilm --concurrency 1 --concurrency 32
  intaglio bench http://localhost:8000 --api chat --concurrency 64 --seconds 60 --json > before.json
  intaglio bench http://localhost:8000 --api chat --concurrency 64 --seconds 60 --baseline before.json
"""


@verb("bench", epilog=EPILOG)
@click.argument("bundle", metavar="BUNDLE|URL", type=BUNDLE_OR_NAME)
@click.option(
    "--baseline", type=BUNDLE_OR_NAME, help="Bundle, URL, or the output of an earlier --json, to compare with."
)
@section("Load")
@click.option("--data", type=PATH, help="File of prompts: JSON lines, or one per line.")
@click.option(
    "--prompt-tokens",
    multiple=True,
    type=click.IntRange(1),
    help="Tokens per prompt, or per text of an encoder; approximate for a server. Can be repeated.  [default: 128, or "
    "the model's maximum]",
)
@click.option(
    "--concurrency",
    "--batch",
    "concurrency",
    multiple=True,
    type=click.IntRange(1),
    default=(1,),
    help="Concurrent requests: clients of a server, rows of a decoder, texts of an encoder's batch. Can be repeated.",
)
@click.option(
    "--requests", type=click.IntRange(1), help="Requests per round.  [default: 16, or 4 times the concurrency]"
)
@click.option("--seconds", type=float, help="Length of a round in seconds, instead of --requests.")
@click.option("--rate", type=float, help="Requests per second, as Poisson arrivals; for servers.")
@click.option("--rounds", type=click.IntRange(1), default=3, help="Rounds after the warm-up.")
@section("Servers")
@click.option(
    "--api",
    type=OneOf(["completions", "chat", "embeddings"]),
    default="completions",
    help="API of the server to measure.",
)
@click.option("--model", help="Name of the model on the server.  [default: its first model]")
@click.option("--api-key-env", metavar="NAME", help="Environment variable that holds the server's API key.")
@click.option("--timeout", default=600.0, help="Response timeout of a server, in seconds.")
@generation_options
@section(OUTPUT)
@click.option("--plot", type=PATH, help="Plot throughput and latency to this .svg or .html file.")
@force_option
@json_option
def bench_command(bundle: str, plot: Path | None, force: bool, as_json: bool, **options: Any) -> int:
    """Measure latency, throughput and peak memory of a bundle, or of a server of the OpenAI API at a URL.

    Each bundle runs in a process of its own. The baseline alternates with BUNDLE, round by round, and gets the same
    options except --strategy, --draft, --early-exit, --cache-bits and the options of strategies. Latency is measured
    for a whole request; for an encoder, for a batch with its tokenization. Exit code 1 when some requests failed.
    """
    from intaglio.files.atomic import atomic_write, check_output_file
    from intaglio.validation.bench.bench import bench
    from intaglio.validation.bench.picture import check_suffix, file

    if plot is not None:
        check_suffix(plot)
        check_output_file(plot, force, "--plot")
    result = bench(bundle, **options)
    if plot is not None:
        atomic_write(plot, file(result, plot).encode())
    if as_json:
        print_json(result)
    else:
        _show(result)
        if plot is not None:
            say(f"picture: {plot}")
    return 1 if any(row.errors for side in _sides(result) for row in side.rows) else 0


MAY_DROP = ["requests", "p90 ms", "prompt tokens", "token ms", "p99 ms", "first token ms"]


def _sides(result: Bench) -> list[SubjectResult]:
    return [result, *([result.baseline] if result.baseline else [])]


def _named(side: SubjectResult, result: Bench) -> str:
    """The name of a side: both may be the same bundle, with different strategies."""
    return side.subject if side is result else f"{side.subject} (baseline)"


def _show(result: Bench) -> None:
    columns = [
        "", "concurrency", "prompt tokens", "requests", "median ms", "p90 ms", "p99 ms", "first token ms", "token ms",
        f"{result.unit} per second", "ratio",
    ]  # fmt: skip
    asked = {(row.concurrency, row.prompt_tokens) for row in result.rows}
    rows = [
        (_named(side, result), row.concurrency, round(row.prompt_tokens_read) or None, row.requests, row.median_ms,
         row.p90_ms, row.p99_ms, _median(row.first_token), _median(row.per_token), row.throughput,
         _ratio(row) if side is result else None)
        for side in _sides(result) for row in side.rows if (row.concurrency, row.prompt_tokens) in asked
    ]  # fmt: skip
    title = f"{result.kind}, {number_of(result.rounds, 'rounds')}, measured on {result.processor}"
    print_table(title, columns, rows, may_drop=MAY_DROP)
    for side in _sides(result):
        if side.peak_bytes is not None:
            what = "resident memory" if side.kind == "server" else "peak memory of its process"
            say(f"{_named(side, result)}: {what} {size(side.peak_bytes)}")
        for row in side.rows:
            for kind, number in row.errors.items():
                name = f"{_named(side, result)}, concurrency {row.concurrency}"
                say(f"{name}: {number_of(number, 'requests')} failed: {kind}")


def _median(times: Percentiles | None) -> float | None:
    return times.median_ms if times else None


def _ratio(row: LoadResult) -> str | None:
    return None if row.ratio is None else f"{row.ratio:.2f}×"
