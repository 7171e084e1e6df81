"""Is every document valid that is generated under a JSON schema, and what does the constraint cost?

    python -m benchmarks.decoding.constrained [--model PATH [--draft PATH]] [--schemas FILE] [--rounds N] [--json]

Ten documents for each of 50 schemas: plain, speculative and n-gram decoding, greedy and sampled at temperature 1.5;
without a draft model seven, none of them speculative. The schemas are our own, and from no published suite. A document
is finished if it ends before `--max-new-tokens`, and valid if it parses and jsonschema accepts it. Greedy documents of
the drafting strategies are compared with those of plain decoding. JSON Schema leaves formats to the application:
documents with a format that Python does not read, such as 30 February, are counted as `odd_formats`.

Then the plain greedy documents are generated again in turns with unconstrained texts of as many tokens, `--rounds`
times; `speed` is the time of the unconstrained texts over that of the documents, both after their prompts. Compiling a
schema is not part of it, and is reported as `compile_milliseconds`, the largest of the 50.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click
import msgspec
from jsonschema import Draft202012Validator, FormatChecker

from intaglio.display.progress import step, track
from intaglio.exporters import export
from intaglio.runtime.generation.generate import TextGenerator
from intaglio.runtime.generation.requests.request import GenerationRequest
from intaglio.runtime.generation.scheduling.generated import Generated
from intaglio.runtime.sampling.grammar import Grammar, GrammarConstraint
from intaglio.runtime.sampling.sampler import Sampling

MODELS = Path(__file__).parents[2] / "examples" / "language_models"
SCHEMAS = Path(__file__).parent / "schemas.jsonl"
GREEDY, SAMPLED = Sampling(), Sampling(temperature=1.5)
# Way -> the strategy, the sampling, and how many documents for each schema.
WAYS = {
    "greedy": ("greedy", GREEDY, 1),
    "sampled": ("sample", SAMPLED, 3),
    "speculative, greedy": ("speculative", GREEDY, 1),
    "speculative, sampled": ("speculative", SAMPLED, 2),
    "n-grams, greedy": ("ngram", GREEDY, 1),
    "n-grams, sampled": ("ngram", SAMPLED, 2),
}


class Schema(msgspec.Struct):
    """A line of the schemas' file."""

    name: str
    schema: dict[str, Any]

    @property
    def prompt(self) -> str:
        """The prompt of the document."""
        return f"{self.name}, as JSON:\n"


class Row(msgspec.Struct):
    """The documents of one way to decode."""

    way: str
    documents: int = 0
    finished: int = 0
    valid: int = 0
    tokens: int = 0
    accepted: int = 0  # draft tokens
    drafted: int = 0
    same: int | None = None  # greedy documents equal to those of plain decoding
    unfinished: list[str] = msgspec.field(default_factory=list)  # names of their schemas
    invalid: list[str] = msgspec.field(default_factory=list)
    odd_formats: list[str] = msgspec.field(default_factory=list)


class Speed(msgspec.Struct):
    """Plain greedy documents against unconstrained texts."""

    tokens: int
    milliseconds: float  # per token, constrained
    unconstrained_milliseconds: float
    speed: float


class Report(msgspec.Struct):
    """All results."""

    schemas: int
    documents: int
    valid: int
    finished: int
    compile_milliseconds: float
    rows: list[Row]
    speed: Speed


@click.command(help=(__doc__ or "").split("\n\n")[0])
@click.option("--model", type=click.Path(path_type=Path), default=MODELS / "large", help="Bundle or checkpoint.")
@click.option("--draft", type=click.Path(path_type=Path), help="The same, for drafts.")
@click.option("--schemas", type=click.Path(path_type=Path), default=SCHEMAS, help="JSON lines: name, schema.")
@click.option("-n", "--max-new-tokens", default=400, show_default=True, help="Maximum tokens per document.")
@click.option("--rounds", default=3, show_default=True, help="Rounds of the measurement of speed.")
@click.option("--threads", type=click.IntRange(min=1), help="Processor threads.  [default: all]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on one line.")
def main(
    model: Path, draft: Path | None, schemas: Path, max_new_tokens: int, rounds: int, threads: int | None, as_json: bool
) -> None:
    """Generate, validate, measure, print."""
    draft = draft or (MODELS / "small" if model == MODELS / "large" else None)
    read = [msgspec.json.decode(line, type=Schema) for line in schemas.read_bytes().splitlines()]
    with tempfile.TemporaryDirectory() as folder, ExitStack() as opened:
        large = bundle_of(model, Path(folder) / "large")
        generators = {
            name: opened.enter_context(TextGenerator(large, strategy=name, threads=threads))
            for name in ("greedy", "sample", "ngram")
        }
        if draft is not None:
            small = bundle_of(draft, Path(folder) / "small")
            generators["speculative"] = opened.enter_context(
                TextGenerator(large, strategy="speculative", draft=small, threads=threads)
            )
        grammars, slowest = compile_all(read, generators["greedy"])
        rows, plain = [], dict[str, list[int]]()
        for way in (way for way, (strategy, *_) in WAYS.items() if strategy in generators):
            rows.append(write_all(way, generators[WAYS[way][0]], read, grammars, max_new_tokens, plain))
        speed = measure(generators["greedy"], read, grammars, plain, rounds)
    totals = {name: sum(getattr(row, name) for row in rows) for name in ("documents", "valid", "finished")}
    report = Report(len(read), **totals, compile_milliseconds=slowest, rows=rows, speed=speed)
    if as_json:
        click.echo(msgspec.json.encode(report).decode())
    else:
        show(report)


def bundle_of(path: Path, folder: Path) -> Path:
    """Return a bundle, exported to `folder` if `path` is a checkpoint."""
    if not (path / "bundle.json").exists():
        with step(f"exporting {path.name}"):
            export(str(path), folder, check=False)
        return folder
    return path


def compile_all(schemas: Sequence[Schema], generator: TextGenerator) -> tuple[dict[str, Grammar], float]:
    """Return the compiled schemas by name, and the largest time that one took, in milliseconds."""
    grammars, slowest = {}, 0.0
    Grammar.json_object(generator.tokenizer)  # reads the tokenizer
    for each in schemas:
        started = time.perf_counter()
        grammars[each.name] = Grammar.from_json_schema(each.schema, generator.tokenizer)
        slowest = max(slowest, 1e3 * (time.perf_counter() - started))
    return grammars, slowest


def write(generator: TextGenerator, request: GenerationRequest) -> Generated:
    """Generate one text."""
    scheduler = generator.scheduler
    state = scheduler.submit(request)
    while not scheduler.idle:
        scheduler.step()
    if state.error is not None:
        raise state.error
    return state.result()


def write_all(
    way: str,
    generator: TextGenerator,
    schemas: Sequence[Schema],
    grammars: Mapping[str, Grammar],
    most: int,
    plain: dict[str, list[int]],
) -> Row:
    """Generate and validate the documents of one way; `plain`: the tokens of the plain greedy ones, which it keeps."""
    _, sampling, count = WAYS[way]
    row = Row(way, same=0 if sampling.greedy and plain else None)
    for each in track(schemas, way):
        for seed in range(count):
            constraint = GrammarConstraint(grammars[each.name], generator.ends)
            request = GenerationRequest(
                each.prompt, sampling, (), most, seed, generator.method, generator.strategy, constraint=constraint
            )
            result = write(generator, request)
            row.documents += 1
            row.tokens += len(result.tokens)
            row.accepted += result.accepted
            row.drafted += result.accepted + result.rolled_back
            if result.stopped != "eos":
                row.unfinished.append(each.name)
                continue
            row.finished += 1
            check(result.text, each, row)
            if row.same is not None:
                row.same += result.tokens == plain.get(each.name)
            elif way == "greedy":
                plain[each.name] = result.tokens
    return row


def check(text: str, schema: Schema, row: Row) -> None:
    """Count the finished document `text` as valid or not."""
    try:
        document = json.loads(text)
    except ValueError:
        row.invalid.append(schema.name)
        return
    if not Draft202012Validator(schema.schema).is_valid(document):
        row.invalid.append(schema.name)
        return
    row.valid += 1
    if not Draft202012Validator(schema.schema, format_checker=FormatChecker()).is_valid(document):
        row.odd_formats.append(schema.name)


def measure(
    generator: TextGenerator,
    schemas: Sequence[Schema],
    grammars: Mapping[str, Grammar],
    plain: Mapping[str, list[int]],
    rounds: int,
) -> Speed:
    """Time the plain documents of at least 8 tokens, and unconstrained texts of as many, in turns."""
    tokens, seconds = 0, {True: 0.0, False: 0.0}
    long = [each for each in schemas if len(plain.get(each.name, ())) >= 8]
    for number in track(range(rounds), "speed"):
        for each in long:
            length = len(plain[each.name])
            for constrained in (True, False) if number % 2 else (False, True):
                constraint = GrammarConstraint(grammars[each.name], ()) if constrained else None
                request = GenerationRequest(
                    each.prompt, max_new_tokens=length, ignore_eos=True, constraint=constraint, reuse_prefix=False
                )
                result = write(generator, request)
                assert len(result.tokens) == length, f"{each.name}: {len(result.tokens)} tokens, expected {length}"
                seconds[constrained] += result.seconds - result.prompt_seconds
            tokens += length - 1
    return Speed(tokens, 1e3 * seconds[True] / tokens, 1e3 * seconds[False] / tokens, seconds[False] / seconds[True])


def show(report: Report) -> None:
    """Print the report as lines."""
    for row in report.rows:
        same = "" if row.same is None else f", {row.same} equal to plain decoding"
        drafts = f", {row.accepted} of {row.drafted} draft tokens accepted" if row.drafted else ""
        print(f"{row.way}: {row.valid} of {row.documents} valid, {row.tokens} tokens{same}{drafts}")
        for what, names in (
            ("not finished", row.unfinished),
            ("INVALID", row.invalid),
            ("odd formats", row.odd_formats),
        ):
            if names:
                print(f"  {what}: {', '.join(names)}")
    print(f"{report.valid} of {report.documents} documents valid, {report.documents - report.finished} not finished.")
    speed = report.speed
    print(
        f"{speed.milliseconds:.3f} ms per token, {speed.unconstrained_milliseconds:.3f} ms unconstrained: "
        f"{speed.speed:.2f} times the speed. The slowest schema compiled in {report.compile_milliseconds:.0f} ms."
    )


if __name__ == "__main__":
    main()
