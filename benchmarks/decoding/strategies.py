"""How fast do a small and a large model generate together, at which quality, against the large one alone and peers?

    python -m benchmarks.decoding.strategies --large CHECKPOINT --small CHECKPOINT --data FILE --validation FILE
        [--json]
    python -m benchmarks.decoding.strategies --large CHECKPOINT --hidden-transfer CHECKPOINT --medusa CHECKPOINT
        --data FILE

BiLD's thresholds are chosen on the validation file: the fastest that lose nothing there, and the fastest that lose at
most one point. Then every text of the data file is generated with all configurations in turn, one text at a time, so
that all run under the same load; `speed` is the plain large model's time over theirs. `overhead` is the fraction of the
time outside of the engines. transformers' plain and assisted generation of the same checkpoints run afterwards in a
separate process; their speed is relative to transformers' own plain one.

The files are JSON lines with "prompt" and, if quality is to be scored against something else than the large model's own
texts, "reference"; examples/train_text_to_text.py makes such checkpoints and files.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click
import msgspec

from benchmarks.decoding.ways import WARM_UP, Way, write_in_turn
from intaglio.display.progress import step
from intaglio.errors import UsageError
from intaglio.exporters import export
from intaglio.graph_passes import compress
from intaglio.runtime.generation.generate import TextGenerator
from intaglio.runtime.generation.requests.prompts import Example, read_examples
from intaglio.validation.measures.text_quality import TextQuality, text_quality
from intaglio.validation.tuning.tune_decoding import METRICS, Setting, TunedDecoding, tune_decoding

DRAFTED = ("hidden-transfer", "medusa")


class Row(msgspec.Struct):
    """One decoding configuration for all texts."""

    way: str
    speed: float  # over the plain large model of the same library
    milliseconds: float  # per text
    quality: TextQuality
    same: float  # fraction of texts equal to the plain large model's
    tokens_a_pass: float | None = None  # of the large model
    kept: float | None = None  # fraction of the drafted tokens
    overhead: float | None = None


class Speeds(msgspec.Struct):
    """All results."""

    parameters: dict[str, int]
    threads: int
    texts: int
    rows: list[Row]


@click.command(help=(__doc__ or "").split("\n\n")[0])
@click.option("--large", required=True, type=click.Path(path_type=Path), help="The checkpoint of the large model.")
@click.option("--small", type=click.Path(path_type=Path), help="The checkpoint that drafts.")
@click.option("--hidden-transfer", type=click.Path(path_type=Path), help="--large with drafts that were trained so.")
@click.option("--medusa", type=click.Path(path_type=Path), help="--large with drafts that were trained so.")
@click.option("--data", required=True, type=click.Path(path_type=Path), help="Prompts for the evaluation.")
@click.option("--validation", type=click.Path(path_type=Path), help="Prompts to choose thresholds on, for --small.")
@click.option("--metric", type=click.Choice(METRICS), default="bleu", show_default=True, help="Measure of quality.")
@click.option("--recipe", help="Compress the large model first, such as with rtn.")
@click.option(
    "--max-draft",
    default=10,
    show_default=True,
    help="BiLD's maximum tokens per draft.",
)
@click.option("-n", "--max-new-tokens", default=128, show_default=True, help="Maximum tokens per text.")
@click.option("--texts", type=click.IntRange(min=1), help="Use the first N prompts of --data.")
@click.option("--threads", type=click.IntRange(min=1), help="Processor threads.  [default: all]")
@click.option("--peers/--no-peers", default=True, help="Also run transformers.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on one line.")
def main(
    large: Path,
    small: Path | None,
    hidden_transfer: Path | None,
    medusa: Path | None,
    data: Path,
    validation: Path | None,
    metric: str,
    recipe: str | None,
    max_draft: int,
    max_new_tokens: int,
    texts: int | None,
    threads: int | None,
    peers: bool,
    as_json: bool,
) -> None:
    """Export, choose thresholds, generate, score, print."""
    count = threads or len(os.sched_getaffinity(0))
    examples = read_examples(data, "--data")[:texts]
    checkpoints = {"large": large, "small": small, "hidden-transfer": hidden_transfer, "medusa": medusa}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as opened:
        bundles, parameters = {}, {}
        for name, checkpoint in checkpoints.items():
            if checkpoint is not None:
                bundles[name] = bundle_of(checkpoint, Path(folder) / name, recipe if name != "small" else None)
                parameters[name] = parameters_of(checkpoint)

        def way(name: str, bundle: str = "large", **options: Any) -> Way:
            generator = TextGenerator(bundles[bundle], max_new_tokens=max_new_tokens, threads=count, **options)
            return Way(name, opened.enter_context(generator))

        ways = [way("large alone")]
        if small is not None:
            if validation is None:
                raise UsageError("--small needs --validation, to choose thresholds on.")
            tuned = tune_decoding(
                bundles["large"],
                bundles["small"],
                validation,
                0.0,
                metric,
                max_draft=max_draft,
                max_new_tokens=max_new_tokens,
                threads=count,
            )
            draft = bundles["small"]
            ways.append(way("speculative", strategy="speculative", draft=draft))
            for loss in (0.0, 1.0):
                best = fastest(tuned, loss)
                thresholds = {"fallback": best.fallback, "rollback": best.rollback}
                name = f"bild, {loss:g} points lost (fallback {best.fallback:g}, rollback {best.rollback:g})"
                ways.append(way(name, strategy="bild", draft=draft, max_draft=max_draft, **thresholds))
        ways.append(way("ngram", strategy="ngram"))
        for kind in DRAFTED:
            if kind in bundles:
                ways += [way(kind, kind, strategy=kind), way(f"{kind}, no copies", kind, strategy=kind, ngram=0)]
        rows = measure(ways, examples)
        opened.close()  # the peers run alone
        if peers:
            rows += beside(large, small, examples, max_new_tokens, count)
    result = Speeds(parameters, count, len(examples), rows)
    click.echo(msgspec.json.encode(result).decode() if as_json else table(result, metric))


def bundle_of(checkpoint: Path, bundle: Path, recipe: str | None) -> Path:
    """The exported, and perhaps compressed, checkpoint."""
    with step(f"exporting {bundle.name}"):
        export(str(checkpoint), bundle, check=False)
        if recipe is None:
            return bundle
        compressed = bundle.with_name(f"{bundle.name}-{recipe}")
        compress(bundle, compressed, recipe)
        return compressed


def parameters_of(checkpoint: Path) -> int:
    """The parameters in a checkpoint's safetensors, including those of drafts."""
    from safetensors import safe_open

    total = 0
    for path in checkpoint.glob("*.safetensors"):
        with safe_open(path, "np") as file:
            for name in file.keys():  # noqa: SIM118  not a dictionary
                length = 1
                for side in file.get_slice(name).get_shape():
                    length *= side
                total += length
    return total


def fastest(tuned: TunedDecoding, loss: float) -> Setting:
    """BiLD's fastest setting that loses at most `loss` points on the validation file, or else the best one."""
    settings = [each for each in tuned.settings if each.strategy == "bild"]
    score = {id(each): getattr(each.quality, tuned.metric) for each in settings}
    least = getattr(tuned.settings[0].quality, tuned.metric) - loss
    good = [each for each in settings if score[id(each)] >= least]
    return min(good, key=lambda each: each.seconds) if good else max(settings, key=lambda each: score[id(each)])


def measure(ways: Sequence[Way], examples: Sequence[Example]) -> list[Row]:
    """Generate every text with every configuration in turn."""
    write_in_turn(ways, [example.prompt for example in examples])
    plain = ways[0].results
    wanted = [
        result.text if example.reference is None else example.reference
        for example, result in zip(examples, plain, strict=True)
    ]
    rows = []
    for way in ways:
        seconds = sum(result.seconds for result in way.results)
        inside = sum(result.seconds_in.small + result.seconds_in.large for result in way.results)
        kept, rolled_back = (sum(getattr(each, name) for each in way.results) for name in ("accepted", "rolled_back"))
        rows.append(
            Row(
                way=way.name,
                speed=sum(result.seconds for result in plain) / seconds,
                milliseconds=1e3 * seconds / len(examples),
                quality=text_quality([each.text.strip() for each in way.results], [text.strip() for text in wanted]),
                same=sum(a.tokens == b.tokens for a, b in zip(plain, way.results, strict=True)) / len(examples),
                tokens_a_pass=sum(len(each.tokens) for each in way.results)
                / sum(each.calls.large for each in way.results),
                kept=kept / (kept + rolled_back) if kept + rolled_back else None,
                overhead=1 - inside / seconds,
            )
        )
    return rows


def beside(large: Path, small: Path | None, examples: Sequence[Example], tokens: int, threads: int) -> list[Row]:
    """transformers' plain and assisted generation, in a separate process."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool, step("transformers"):
        return pool.submit(with_transformers, large, small, examples, tokens, threads).result()


def with_transformers(
    large: Path, small: Path | None, examples: Sequence[Example], tokens: int, threads: int
) -> list[Row]:
    """See `beside`."""
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    torch.set_num_threads(threads)

    def opened(path: Path) -> Any:
        config = transformers.AutoConfig.from_pretrained(path)
        kind = transformers.AutoModelForSeq2SeqLM if config.is_encoder_decoder else transformers.AutoModelForCausalLM
        return kind.from_pretrained(path, dtype=torch.float32).eval()

    tokenizer = transformers.AutoTokenizer.from_pretrained(large)
    model, assistant = opened(large), opened(small) if small else None
    texts: dict[str, list[str]] = {"plain": [], "assisted": []}
    seconds = dict.fromkeys(texts, 0.0)
    with torch.inference_mode():
        for number, example in enumerate([*examples[:WARM_UP], *examples]):
            ids = tokenizer(example.prompt, return_tensors="pt").input_ids
            options = {"attention_mask": torch.ones_like(ids), "max_new_tokens": tokens, "do_sample": False}
            for name in texts:
                if name == "assisted" and assistant is None:
                    continue
                given = {"assistant_model": assistant} if name == "assisted" else {}
                began = time.perf_counter()
                written = model.generate(ids, pad_token_id=0, **options, **given)[0]
                if number >= WARM_UP:
                    seconds[name] += time.perf_counter() - began
                    start = 0 if model.config.is_encoder_decoder else ids.shape[1]
                    texts[name].append(tokenizer.decode(written[start:], skip_special_tokens=True).strip())
    wanted = [
        text if example.reference is None else example.reference
        for example, text in zip(examples, texts["plain"], strict=True)
    ]
    return [
        Row(
            way=f"transformers, {name}",
            speed=seconds["plain"] / seconds[name],
            milliseconds=1e3 * seconds[name] / len(examples),
            quality=text_quality(found, wanted),
            same=sum(a == b for a, b in zip(texts["plain"], found, strict=True)) / len(found),
        )
        for name, found in texts.items()
        if found
    ]


def table(result: Speeds, metric: str) -> str:
    """Print the results as tables."""
    counts = ", ".join(f"{name} {count:,}" for name, count in result.parameters.items())
    lines = [f"parameters: {counts}; {result.threads} threads, {result.texts} texts", ""]
    columns = ("speed", "ms a text", metric, "same", "tokens a pass", "kept", "overhead")
    lines.append(f"{'way':60} " + " ".join(f"{column:>{max(7, len(column))}}" for column in columns))
    for row in result.rows:
        cells = [
            f"{row.speed:7.2f}", f"{row.milliseconds:9.1f}", f"{getattr(row.quality, metric):7.2f}", f"{row.same:7.0%}",
            f"{row.tokens_a_pass or 0:13.2f}", f"{row.kept or 0:7.0%}", f"{row.overhead or 0:8.1%}",
        ]  # fmt: skip
        lines.append(f"{row.way:60} {' '.join(cells)}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
