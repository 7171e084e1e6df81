"""How many tokens per second do whole models read and generate, at 16, 8, 4, 3 and 2 bits, against llama.cpp?

    python -m benchmarks.decoding.speed [--only NAME ...] [--threads N ...] [--prompt N ...] [--folder FOLDER] [--json]

A LLaMA of 0.95 billion random parameters, one text at a time: 64 tokens after a prompt of 8, whose own time does not
count, and prompts of 128, 512 and 2048. All contestants build their models from one float16 checkpoint, and take turns,
each in its own process, resting in between. Without --folder everything is rebuilt, 12 GB and more in a temporary
folder. Beside llama.cpp's formats there are ONNX Runtime's own products with weights of 8, 4 and 2 bits in groups of
32. Ours have lookup tables, with 8 bits groups of 128.

On a loaded machine, elapsed times mean little: the tokens per CPU second of one thread still show how much
work each does. Two threads of llama.cpp, which spin while they wait for each other, can take ten times as long there;
with OMP_WAIT_POLICY=passive in the environment they sleep instead.
"""

from __future__ import annotations

import contextlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click
import msgspec

from benchmarks.encoding.integer_encoder import REST, Processor, processor
from benchmarks.shared import intaglio_decoder, llama_cpp_peer, random_llama
from benchmarks.shared.contestants import fresh_process, left_out
from benchmarks.shared.llama_cpp_peer import Generate
from intaglio.display.progress import step, track

PROMPT = (1, 500, 1000, 2000, 4000, 8000, 16_000, 31_000)
PROMPTS = (128, 512, 2048)
TOKENS = 64
WARM_UP = 5  # tokens before each turn, which are not counted


@dataclass(frozen=True)
class Contestant:
    """`prepare(checkpoint, folder)` writes its model and returns it; `open(model, threads)` gives what generates.

    Both are called in a fresh process. `missing()` says why it cannot run here, or nothing; `version()` what runs.
    """

    title: str
    missing: Callable[[], str]
    version: Callable[[], str]
    prepare: Callable[[Path, Path], Path]
    open: Callable[[Path, int], Generate]


def _llama_cpp(name: str) -> Contestant:
    peer = llama_cpp_peer
    return Contestant(f"llama.cpp {name}", peer.missing, peer.version, partial(peer.quantized, name), peer.open_model)


def _intaglio(bits: int, activation_bits: int) -> Contestant:
    ours, title = intaglio_decoder, f"intaglio {bits}-bit" + (f", x {activation_bits}" if activation_bits < 16 else "")
    return Contestant(
        title, ours.missing, ours.version, partial(ours.compressed, bits, activation_bits), ours.open_model
    )


def _onnx_runtime(bits: int) -> Contestant:
    ours = intaglio_decoder
    prepare = partial(ours.with_own_products, bits)
    return Contestant(f"ONNX Runtime {bits}-bit", ours.missing, ours.version, prepare, ours.open_model)


CONTESTANTS = {
    **{f"intaglio-{bits}": _intaglio(bits, 16) for bits in (16, 8, 4, 3, 2)},
    **{f"intaglio-{bits}-8": _intaglio(bits, 8) for bits in (8, 4, 3, 2)},  # activations of 8 bits, as the others have
    **{f"llama-cpp-{name.lower()}": _llama_cpp(name) for name in llama_cpp_peer.FORMATS},
    **{f"onnxruntime-{bits}": _onnx_runtime(bits) for bits in (8, 4, 2)},
}
# Ours -> what it is compared with.
OF_BITS = {
    8: ("onnxruntime-8",),
    4: ("llama-cpp-q4_0", "onnxruntime-4"),
    3: ("llama-cpp-q3_k",),
    2: ("llama-cpp-q2_k", "onnxruntime-2"),
}
PEERS = {
    "intaglio-16": ("llama-cpp-f16",),
    **{f"intaglio-{bits}{x}": peers for x in ("", "-8") for bits, peers in OF_BITS.items()},
}


class Row(msgspec.Struct):
    """One contestant with one number of threads."""

    contestant: str
    threads: int
    model_bytes: int
    peak_bytes: int
    tokens_per_second: float  # the median of the rounds
    tokens_per_cpu_second: float  # of all threads together, in the best round
    rounds: list[float]  # tokens per second of each; in one round all contestants had the same neighbours
    prompts: dict[int, list[float]]  # tokens per second of a prompt of so many, in each round


class Turn(msgspec.Struct):
    """The cost of one contestant's tokens in one round."""

    seconds: float
    cpu_seconds: float  # of all threads together
    prompts: dict[int, float]  # tokens of a prompt -> seconds
    peak_bytes: int  # of the process so far, the mapped model included


class Result(msgspec.Struct):
    """All measurements."""

    processor: Processor
    versions: list[str]
    parameters: int
    rows: list[Row]


def main() -> None:
    """Start the command line; processes that this one starts import the file without running it."""
    command(prog_name="python -m benchmarks.decoding.speed")


@click.command(help=(__doc__ or "").split("\n\n")[0])
@click.option("--only", multiple=True, type=click.Choice(list(CONTESTANTS)), help="Contestants to run; default: all.")
@click.option("--threads", multiple=True, type=int, default=(1, 2), show_default=True, help="The same for all.")
@click.option("--prompt", "lengths", multiple=True, type=int, default=PROMPTS, show_default=True, help="Tokens.")
@click.option("--rounds", default=5, show_default=True, help="Turns of each contestant.")
@click.option("--folder", type=click.Path(path_type=Path), help="Keep the checkpoint and the models here.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on one line.")
def command(
    only: tuple[str, ...],
    threads: tuple[int, ...],
    lengths: tuple[int, ...],
    rounds: int,
    folder: Path | None,
    as_json: bool,
) -> None:
    """Measure and print."""
    names = selected(only)
    versions = sorted({CONTESTANTS[name].version() for name in names})
    result = Result(processor(), versions, random_llama.BILLION.parameters(), [])
    if not as_json:
        show_setting(result, rounds)
    complete = True
    with tempfile.TemporaryDirectory() as temporary:
        models = prepared(names, folder or Path(temporary))
        for count in threads:
            rows = measure(models, count, lengths, rounds)
            if not as_json:
                show(rows)
            result.rows += rows
            complete = complete and len(rows) == len(names)
    if as_json:
        click.echo(msgspec.json.encode(result).decode())
    sys.exit(0 if complete else 1)


def selected(only: Sequence[str]) -> list[str]:
    """The named contestants, or all; those that cannot run here are reported on standard error."""
    names = [name for name in CONTESTANTS if not only or name in only]
    reasons = {name: reason for name in names if (reason := CONTESTANTS[name].missing())}
    for name, reason in reasons.items():
        left_out(name, reason)
    if len(reasons) == len(names):
        sys.exit(1)
    return [name for name in names if name not in reasons]


def prepared(names: Sequence[str], folder: Path) -> dict[str, Path]:
    """Build the models of `names` below `folder`; failures are reported on standard error."""
    checkpoint = random_llama.checkpoint(folder / "checkpoint")
    models = {}
    for name in names:
        try:
            with step(f"{CONTESTANTS[name].title}: making the model"), fresh_process() as pool:
                models[name] = pool.submit(_prepare, name, checkpoint, folder).result()
        except Exception as error:  # a peer can raise anything; the others go on
            left_out(name, str(error))
    return models


def measure(models: dict[str, Path], threads: int, lengths: Sequence[int], rounds: int) -> list[Row]:
    """Let all contestants take turns."""
    with opened(models, threads) as processes:
        turns: dict[str, list[Turn]] = {name: [] for name in processes}
        for _ in track(range(rounds), f"{threads} threads"):
            for name, process in processes.items():
                time.sleep(REST)
                turns[name].append(process.submit(_turn, lengths).result())
    return [summary(name, size(models[name]), threads, taken) for name, taken in turns.items()]


def summary(name: str, model_bytes: int, threads: int, turns: list[Turn]) -> Row:
    """The row of the contestant `name`."""
    speeds = [TOKENS / turn.seconds for turn in turns]
    by_cpu = max(TOKENS / turn.cpu_seconds for turn in turns)
    prompts = {length: [length / turn.prompts[length] for turn in turns] for length in turns[0].prompts}
    return Row(name, threads, model_bytes, turns[-1].peak_bytes, statistics.median(speeds), by_cpu, speeds, prompts)


@contextlib.contextmanager
def opened(models: dict[str, Path], threads: int) -> Iterator[dict[str, ProcessPoolExecutor]]:
    """Open every model in its own process; failures are reported on standard error."""
    with contextlib.ExitStack() as stack:
        processes = {}
        for name, model in models.items():
            process = stack.enter_context(fresh_process())
            try:
                process.submit(_open, name, model, threads).result()
                processes[name] = process
            except Exception as error:  # a peer can raise anything; the others go on
                left_out(name, str(error))
        yield processes


def size(model: Path) -> int:
    """Bytes of a model that is one file, or a folder of them."""
    files = [path for path in model.rglob("*") if path.is_file()] if model.is_dir() else [model]
    return sum(path.stat().st_size for path in files)


_GENERATORS: list[Generate] = []  # in a child: its single model


def _prepare(name: str, checkpoint: Path, folder: Path) -> Path:
    return CONTESTANTS[name].prepare(checkpoint, folder)


def _open(name: str, model: Path, threads: int) -> None:
    _GENERATORS.append(CONTESTANTS[name].open(model, threads))


def _turn(lengths: Sequence[int]) -> Turn:
    (generate,) = _GENERATORS
    tokens = generate(PROMPT)
    for _ in range(WARM_UP):
        next(tokens)
    tokens = generate(PROMPT)
    next(tokens)  # the result of the prefill
    start, cpu_start = time.perf_counter(), time.process_time()
    for _ in range(TOKENS):
        next(tokens)
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
    prompts = {}
    for length in lengths:
        prompt = [100 + 37 * place % (random_llama.VOCABULARY - 100) for place in range(length)]
        start = time.perf_counter()
        next(generate(prompt))
        prompts[length] = time.perf_counter() - start
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    peak = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
    return Turn(seconds, cpu_seconds, prompts, peak)


def show_setting(result: Result, rounds: int) -> None:
    """Print the setup and the machine."""
    machine = result.processor
    print(f"{machine.name}, {machine.cores} cores: {' '.join(machine.flags)}; load {machine.load:.1f} at the start")
    print(f"{result.parameters / 1e9:.2f} billion parameters, {TOKENS} tokens after {len(PROMPT)}; {rounds} rounds")
    print(*result.versions, sep="\n")


def show(rows: list[Row]) -> None:
    """Print the tables of one number of threads: the speeds, and ours as multiples of the others'."""
    by_name = {row.contestant: row for row in rows}
    for row in rows[:1]:
        columns = f"{'model':>9} {'peak':>11} {'tokens per second':>27} {'per CPU second':>17}"
        lengths = "".join(f"{f'of {length}':>10}" for length in row.prompts)
        print(f"\n{f'threads: {row.threads}':24} {columns}  {'prompt':>7}{lengths}")
    for row in rows:
        sizes = f"{row.model_bytes / 1e6:6.0f} MB {row.peak_bytes / 1e6:8.0f} MB"
        speeds = f"{row.tokens_per_second:9.1f} ({min(row.rounds):5.1f} to {max(row.rounds):5.1f})"
        prompts = "".join(f"{statistics.median(each):10.1f}" for each in row.prompts.values())
        title = CONTESTANTS[row.contestant].title
        print(f"{title:24} {sizes} {speeds} {row.tokens_per_cpu_second:17.1f} {prompts:>8}")
    for name, peers in PEERS.items():
        for peer in peers:
            if name in by_name and peer in by_name:
                found = " ".join(f"{each:6.2f}" for each in ratios(by_name[name], by_name[peer]))
                print(f"{CONTESTANTS[name].title} / {CONTESTANTS[peer].title}: {found}", flush=True)


def ratios(ours: Row, theirs: Row) -> list[float]:
    """Medians over the rounds of our speed as a multiple of theirs: of generating, then of the prompts."""
    pairs = [(ours.rounds, theirs.rounds), *((ours.prompts[each], theirs.prompts[each]) for each in ours.prompts)]
    return [statistics.median(mine / other for mine, other in zip(*pair, strict=True)) for pair in pairs]


if __name__ == "__main__":
    main()
