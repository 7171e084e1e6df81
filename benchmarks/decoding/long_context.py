"""How many tokens a second does a decoder write after a long prompt, against llama.cpp on the same GGUF file?

    pip install llama-cpp-python gguf
    python -m benchmarks.decoding.long_context [GGUF BUNDLE] [--slots 8192] [--threads N ...] [--folder DIR] [--json]

BUNDLE is the export of GGUF; without them, a LLaMA of 0.85 billion random weights in Q4_K_M with 8 heads of keys, which
`--folder` keeps. Both read a prompt that fills the slots, once, and then take turns: 32 tokens after it, of
which only the time of the tokens counts, the prompt staying in the caches. llama.cpp has flash attention, and caches of
float16 or q8_0; ours are of float32 or have 8 bits. The limit: as many tokens a second as llama.cpp's. Megabytes are
those of the cache's slots.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import msgspec
import numpy as np

from benchmarks.encoding.integer_encoder import processor
from benchmarks.shared import random_gguf
from benchmarks.shared.llama_cpp_peer import open_timed
from benchmarks.shared.random_llama import Shape
from intaglio.errors import IntaglioError
from intaglio.exporters import export
from intaglio.runtime.sessions.decoder import DecoderSession

TOKENS = 32
SHAPE = Shape(key_value_heads=8, positions=32_768)
LARGEST = 20_000  # of the prompt's random token ids

Turn = Callable[[], float]  # runs TOKENS tokens; returns seconds per token


class Row(msgspec.Struct):
    """A contestant: tokens a second, the median over the rounds, and its cache."""

    title: str
    threads: int
    tokens_per_second: float
    ratio: float  # to llama.cpp's of the same kind, median of the rounds' ratios
    megabytes: float | None


@click.command()
@click.argument("gguf", type=click.Path(path_type=Path, exists=True), required=False)
@click.argument("bundle", type=click.Path(path_type=Path, exists=True), required=False)
@click.option("--slots", default=8192, show_default=True, help="Tokens of the prompt and after it.")
@click.option("--threads", multiple=True, default=(1, 2), show_default=True)
@click.option("--rounds", default=5, show_default=True)
@click.option("--folder", type=click.Path(path_type=Path), help="Keep the random model here.")
@click.option("--json", "as_json", is_flag=True)
def main(
    gguf: Path | None,
    bundle: Path | None,
    slots: int,
    threads: Sequence[int],
    rounds: int,
    folder: Path | None,
    as_json: bool,
) -> None:
    """Print a table."""
    machine = processor()
    prompt = np.random.default_rng(0).integers(100, LARGEST, slots - TOKENS - 1).tolist()
    with TemporaryDirectory() as temporary:
        if gguf is None or bundle is None:
            gguf, bundle = random_model(folder or Path(temporary))
        try:
            rows = [row for count in threads for row in measure(gguf, bundle, prompt, count, rounds)]
        except IntaglioError as error:  # such as more slots than the model has positions
            raise click.ClickException(str(error)) from None
    if as_json:
        print(msgspec.json.encode({"processor": machine, "slots": slots, "rows": rows}).decode())
        return
    print(f"{machine.name}, {machine.cores} processors, load {machine.load:.1f}; {slots} slots")
    print(f"{'threads':7}  {'':28}  {'tokens/s':>8}  {'ratio':>5}  {'cache, MB':>9}")
    for row in rows:
        size = "" if row.megabytes is None else f"{row.megabytes:9.0f}"
        print(f"{row.threads:7}  {row.title:28}  {row.tokens_per_second:8.2f}  {row.ratio:5.2f}  {size}")


def random_model(folder: Path) -> tuple[Path, Path]:
    """A GGUF file in `folder`, and its export, unless they are there."""
    folder.mkdir(exist_ok=True)
    file = random_gguf.write(folder / "long-context.gguf", SHAPE, "Q4_K_M")
    bundle = folder / "long-context"
    if not bundle.exists():
        export(file, bundle)
    return file, bundle


def measure(gguf: Path, bundle: Path, prompt: list[int], threads: int, rounds: int) -> list[Row]:
    """All contestants in turn; each kind of ours is compared with the same kind of llama.cpp's."""
    with ExitStack() as stack:
        peers = {kind: llama_cpp(gguf, prompt, threads, kind) for kind in ("f16", "q8_0")}
        ours = {bits: stack.enter_context(opened(bundle, prompt, threads, bits)) for bits in (None, 8)}
        turns: dict[str, Turn] = {
            **{f"llama.cpp, {kind}": turn for kind, turn in peers.items()},
            **{f"ours, {'float32' if bits is None else '8 bits'}": steps(each, prompt) for bits, each in ours.items()},
        }
        for turn in turns.values():
            turn()
        times = {title: [] for title in turns}
        for _ in range(rounds):
            for title, turn in turns.items():
                times[title].append(turn())
        sizes = [None, None, *(sum(each.nbytes for each in one.cache.buffers.values()) / 1e6 for one in ours.values())]
    against = dict(zip(turns, [*list(turns)[:2]] * 2, strict=True))
    return [
        Row(
            title,
            threads,
            1 / statistics.median(own),
            statistics.median(theirs / mine for mine, theirs in zip(own, times[against[title]], strict=True)),
            size,
        )
        for (title, own), size in zip(times.items(), sizes, strict=True)
    ]


def opened(bundle: Path, prompt: list[int], threads: int, bits: int | None) -> DecoderSession:
    """Our session, after the prompt."""
    session = DecoderSession.open(bundle, threads=threads, spinning=False, cache_bits=bits)
    session.prefill([prompt])
    return session


def steps(session: DecoderSession, prompt: list[int]) -> Turn:
    """Greedy tokens after the prompt, which are then taken back."""

    def turn() -> float:
        session.rollback(len(prompt))
        token, began = 7, time.perf_counter()
        for _ in range(TOKENS):
            token = int(session.step([[token]])[0, 0].argmax())
        return (time.perf_counter() - began) / TOKENS

    return turn


def llama_cpp(gguf: Path, prompt: list[int], threads: int, kind: str) -> Turn:
    """llama.cpp, which keeps the prompt of the last call in its cache."""
    complete = open_timed(gguf, threads, len(prompt) + 2 * TOKENS, kind, keeps=True)
    return lambda: complete(prompt, TOKENS)["predicted_ms"] / 1e3 / TOKENS


if __name__ == "__main__":
    main()
