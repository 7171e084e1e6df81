"""How fast is `intaglio serve` beside llama.cpp's Python server, on a model of the same shape and bits?

    pip install 'intaglio[peers]' 'llama-cpp-python[server]'
    python -m benchmarks.serving.peers [--checkpoint CHECKPOINT] [--threads 2] [--rounds 3] [--json]

A LLaMA of random parameters, in 4 bits: Q4_0 there, the recipe rtn here. One client, and eight at a time, request texts
of a fixed length as streams; the two servers take turns and rest in between, each with the processors to itself.
llama.cpp's Python server generates one text at a time.
"""

from __future__ import annotations

import asyncio
import importlib.util
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import click
import msgspec

from benchmarks.shared import llama_cpp_peer, random_llama
from benchmarks.shared.serving import OPENING, serving
from intaglio.display.progress import step, track
from intaglio.exporters import export
from intaglio.graph_passes import compress
from intaglio.validation.bench.client import Client, RequestError
from intaglio.validation.bench.prompts import of_words
from intaglio.validation.reports.report import processor

SHAPE = random_llama.Shape(hidden=768, feed_forward=2048, layers=12, heads=12)
CLIENTS = (1, 8)
PROMPT_TOKENS, NEW_TOKENS = 32, 64
OURS, PEER = "intaglio serve, rtn 4 bits", "llama.cpp's Python server, Q4_0"
NEEDS = ("fastapi", "pydantic_settings")  # of llama.cpp's server
END = 2  # the id of </s>, which neither may choose


class Row(msgspec.Struct):
    """One server with some clients; medians of the rounds."""

    server: str
    clients: int
    tokens_per_second: float
    first_token_ms: float
    ratio: float | None = None  # tokens per second, to the peer's


class Result(msgspec.Struct):
    """All rows."""

    processor: str
    threads: int
    rows: list[Row]


@click.command(help=(__doc__ or "").split("\n\n")[0])
@click.option("--checkpoint", type=click.Path(path_type=Path), help="A LLaMA in float16; by default one is made.")
@click.option("--threads", default=2, show_default=True)
@click.option("--rounds", default=3, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on one line.")
def command(checkpoint: Path | None, threads: int, rounds: int, as_json: bool) -> None:
    """Measure and print."""
    if reason := llama_cpp_peer.missing() or _missing():
        click.echo(f"serve_peers.py measures nothing: {reason}", err=True)
        return
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        source = checkpoint or random_llama.checkpoint(folder / "checkpoint", SHAPE)
        with step("exporting and compressing"):
            export(str(source), folder / "float", check=False)
            compress(folder / "float", folder / "model", "rtn")
            gguf = with_vocabulary(source, folder)
        ours = stack.enter_context(serving(folder / "model", "--rows", max(CLIENTS), "--threads", threads))
        peer = stack.enter_context(llama_cpp_server(gguf, threads))
        rows = asyncio.run(measure({OURS: ours.url, PEER: peer}, rounds))
    result = Result(processor(), threads, rows)
    click.echo(msgspec.json.encode(result).decode() if as_json else table(result))


def _missing() -> str:
    absent = [module for module in NEEDS if importlib.util.find_spec(module) is None]
    install = "Install it with: pip install 'llama-cpp-python[server]'"
    return f"{', '.join(absent)} not installed. {install}" if absent else ""


def with_vocabulary(checkpoint: Path, folder: Path) -> Path:
    """The checkpoint as GGUF in Q4_0 with its vocabulary, which the server needs to read text."""
    llama_cpp_peer.write_gguf(checkpoint, folder / "F16.gguf", vocabulary=True)
    return llama_cpp_peer.quantized("Q4_0", checkpoint, folder)


@contextmanager
def llama_cpp_server(model: Path, threads: int) -> Iterator[str]:
    """Run llama.cpp's Python server until the block ends; yield its URL."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = {"model": model, "port": port, "n_ctx": 1024, "n_threads": threads, "n_threads_batch": threads}
    command = [sys.executable, "-m", "llama_cpp.server", "--flash_attn", "true", "--interrupt_requests", "false"]
    command += [word for name, value in options.items() for word in (f"--{name}", str(value))]
    with tempfile.TemporaryFile("w+") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            _wait(server, port)
            yield f"http://127.0.0.1:{port}"
        except ConnectionError as error:
            log.seek(0)
            raise RuntimeError(f"llama.cpp's server does not listen: {log.read()[-500:]}") from error
        finally:
            server.terminate()
            server.wait()


def _wait(server: subprocess.Popen[bytes], port: int) -> None:
    ends = time.monotonic() + OPENING
    while server.poll() is None and time.monotonic() < ends:
        with socket.socket() as trial:
            if trial.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    raise ConnectionError(port)


async def measure(servers: dict[str, str], rounds: int) -> list[Row]:
    """Let the servers take turns with each number of clients."""
    rows = []
    for clients in CLIENTS:
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in servers}
        turns = [(number, name) for number in range(-1, rounds) for name in servers]
        for number, name in track(turns, f"{clients} clients", len(turns)):
            await asyncio.sleep(0.5)  # the other's threads are asleep
            measured = await turn(servers[name], clients, number)
            if number >= 0:  # the first warms up
                found[name].append(measured)
        speeds = {name: statistics.median(speed for speed, _ in each) for name, each in found.items()}
        first = {name: statistics.median(delay for _, delay in each) for name, each in found.items()}
        ratio = statistics.median(own / other for (own, _), (other, _) in zip(found[OURS], found[PEER], strict=True))
        rows += [
            Row(name, clients, speeds[name], 1e3 * first[name], ratio if name == OURS else None) for name in servers
        ]
    return rows


async def turn(url: str, clients: int, number: int) -> tuple[float, float]:
    """Tokens per second of `clients` texts that are requested together, and the median time to first token."""
    texts: Sequence[str] = of_words(PROMPT_TOKENS)
    async with Client(url) as client:
        (name,) = await client.models()
        began = time.perf_counter()

        async def use(place: int) -> float:
            body = {
                "model": name, "prompt": texts[(8 * (number + 1) + place) % len(texts)], "max_tokens": NEW_TOKENS,
                "temperature": 0.0, "logit_bias": {str(END): -100},
            }  # fmt: skip
            reply = await client.complete("/v1/completions", body)
            if reply.finish_reason != "length":
                raise RequestError("a shorter text", f"it ended with {reply.finish_reason!r}")
            return reply.first - began

        first = await asyncio.gather(*(use(place) for place in range(clients)))
        return clients * NEW_TOKENS / (time.perf_counter() - began), statistics.median(first)


def table(result: Result) -> str:
    """The result for people."""
    lines = [f"measured on {result.processor}, {result.threads} threads; {NEW_TOKENS} tokens after {PROMPT_TOKENS}"]
    for row in result.rows:
        ratio = "" if row.ratio is None else f"  {row.ratio:.2f} times the peer's"
        lines.append(
            f"{row.server:34}{row.clients:3} clients {row.tokens_per_second:8.1f} tokens/s, first token after "
            f"{row.first_token_ms:7.1f} ms{ratio}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    command(prog_name="python -m benchmarks.serving.peers")
