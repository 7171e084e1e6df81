"""How fast are the weights of a GGUF file in a bundle, against llama.cpp on the same file?

    pip install llama-cpp-python gguf
    python -m benchmarks.decoding.imported [--only Q4_K_M ...] [--activation-bits 8] [--threads N ...] [--rounds N]
        [--folder FOLDER] [--json]

A LLaMA of 0.95 billion weights in random blocks of each format is exported, and both take turns: 32 tokens after a
prompt of 32, whose time does not count, and a prompt of 512. GPTQ at 4 bits in groups of 128, which llama.cpp does not
read, is compared with its Q4_0. llama.cpp keeps 8 bits of the activations, we 16 unless asked for 8. The limits: as
many tokens a second as llama.cpp, of texts and of prompts.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import click
import msgspec
import numpy as np

from benchmarks.encoding.integer_encoder import processor
from benchmarks.shared import llama_cpp_peer, random_gguf, random_gptq
from benchmarks.shared.llama_cpp_peer import Completion
from benchmarks.shared.random_llama import BILLION, VOCABULARY
from intaglio.display.progress import step, track
from intaglio.exporters import export
from intaglio.runtime.sessions.decoder import DecoderSession

GPTQ = "GPTQ-4"
PEERS = {**{name: name for name in random_gguf.FORMATS}, GPTQ: "Q4_0"}  # format -> llama.cpp's
TOKENS = 32
PROMPT = 512
REST = 0.1  # seconds; idle threads of both spin, as by default, and fall asleep before the other's turn


class Row(msgspec.Struct):
    """A format, with the median speeds of both; ratios are medians of the rounds', ours to llama.cpp's."""

    name: str
    threads: int
    decoding: tuple[float, float]  # tokens a second
    decoding_ratio: float
    prompt: tuple[float, float]  # tokens a second
    prompt_ratio: float


@click.command(help=(__doc__ or "").split("\n\n")[0])
@click.option("--only", multiple=True, type=click.Choice(list(PEERS)), help="Formats; default: all.")
@click.option("--activation-bits", type=click.Choice(["8", "16"]), default="16", show_default=True)
@click.option("--threads", multiple=True, type=int, default=(1, 2), show_default=True)
@click.option("--rounds", default=5, show_default=True)
@click.option("--folder", type=click.Path(path_type=Path), help="Keep files and bundles here.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on one line.")
def main(
    only: Sequence[str],
    activation_bits: str,
    threads: Sequence[int],
    rounds: int,
    folder: Path | None,
    as_json: bool,
) -> None:
    """Measure and print."""
    machine, rows = processor(), []
    if not as_json:
        print(f"{machine.name}, {machine.cores} processors, load {machine.load:.1f}; {llama_cpp_peer.version()}")
        print(
            f"{'':8}{'threads':>8}{'tokens/s':>10}{'llama.cpp':>10}{'ratio':>7}{'prompt':>10}{'llama.cpp':>10}{'ratio':>7}"
        )
    with tempfile.TemporaryDirectory() as temporary:
        here = folder or Path(temporary)
        here.mkdir(exist_ok=True)
        for name in only or PEERS:
            file = random_gguf.write(here / f"{PEERS[name]}.gguf", BILLION, PEERS[name])
            source = random_gptq.write(here / GPTQ, BILLION) if name == GPTQ else file
            bundle = here / f"{name}-{activation_bits}"
            if not bundle.exists():
                with step(f"exporting {name}"):
                    export(source, bundle, activation_bits=int(activation_bits))
            for count in threads:
                rows.append(measure(name, bundle, file, count, rounds))
                if not as_json:
                    show(rows[-1])
    if as_json:
        print(msgspec.json.encode({"processor": machine, "rows": rows}).decode())
    sys.exit(any(row.decoding_ratio < 1 or row.prompt_ratio < 1 for row in rows))


def measure(name: str, bundle: Path, file: Path, threads: int, rounds: int) -> Row:
    """Let both take turns."""
    random = np.random.default_rng(0)
    found: dict[str, list[tuple[float, float]]] = {"decoding": [], "prompt": []}
    peer = llama_cpp_peer.open_timed(file, threads, PROMPT + 2 * TOKENS)
    with DecoderSession.open(bundle, threads=threads) as session:
        for index in track(range(rounds + 1), f"{name}, {threads} threads"):
            short, long = (random.integers(100, VOCABULARY // 2, size).tolist() for size in (TOKENS, PROMPT))
            time.sleep(REST)
            ours = [decoding(session, short), prompted(session, long)]
            time.sleep(REST)
            taken = ours, of_peer(peer, short, long)
            if index:  # the first one warms up
                for key, pair in zip(found, zip(*taken, strict=True), strict=True):
                    found[key].append(pair)
    medians = {key: tuple(map(statistics.median, zip(*pairs, strict=True))) for key, pairs in found.items()}
    ratios = {key: statistics.median(ours / theirs for ours, theirs in pairs) for key, pairs in found.items()}
    return Row(name, threads, medians["decoding"], ratios["decoding"], medians["prompt"], ratios["prompt"])


def decoding(session: DecoderSession, prompt: list[int]) -> float:
    """Our tokens a second after a prompt."""
    session.rollback(0)
    token = int(session.prefill([prompt])[0].argmax())
    began = time.perf_counter()
    for _ in range(TOKENS):
        token = int(session.step([[token]])[0, 0].argmax())
    return TOKENS / (time.perf_counter() - began)


def prompted(session: DecoderSession, prompt: list[int]) -> float:
    """Our tokens of a prompt a second."""
    session.rollback(0)
    began = time.perf_counter()
    session.prefill([prompt])
    return len(prompt) / (time.perf_counter() - began)


def of_peer(peer: Completion, short: list[int], long: list[int]) -> list[float]:
    """The same two of llama.cpp."""
    written, read = peer(short, TOKENS), peer(long, 0)
    return [TOKENS / (written["predicted_ms"] / 1e3), len(long) / (read["prompt_ms"] / 1e3)]


def show(row: Row) -> None:
    """Print a line."""
    decoding = f"{row.decoding[0]:10.2f}{row.decoding[1]:10.2f}{row.decoding_ratio:7.2f}"
    print(f"{row.name:8}{row.threads:8}{decoding}{row.prompt[0]:10.1f}{row.prompt[1]:10.1f}{row.prompt_ratio:7.2f}")


if __name__ == "__main__":
    main()
