"""What does it cost that texts come over HTTP through Triton, and not as batches in one process?

    INTAGLIO_TRITON=build/triton python -m benchmarks.serving.triton_throughput [--callers N] [--texts N] [--rounds N]
        [--json]

`make triton-test` makes the server's environment. The real MiniLM embeds the same texts in two ways, which take turns:
in batches of 32, in the code of `intaglio run` (`TextRunner.run`), and by a Triton server on this machine, on its
Python backend with dynamic batching, for concurrent callers with one text in each HTTP request. The ratio is the
server's throughput over that of the batches; it can exceed 1, as the server tokenizes while it computes. The target is
0.8. The callers take processor time from the server.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import click
import msgspec
import numpy as np
import numpy.typing as npt

from benchmarks.encoding.integer_encoder import exported
from benchmarks.shared.texts import evaluation_texts
from intaglio.bundle.bundle import Bundle
from intaglio.deploy import deploy_triton
from intaglio.display.progress import track
from intaglio.extras import load
from intaglio.runtime.text.run_texts import TextRunner

TARGET = 0.8  # of the throughput in one process
BATCH = 32
HEADER = "Inference-Header-Content-Length"
CLOSE = 1e-5  # between numbers of embeddings of length 1
Embeddings = npt.NDArray[np.float32]


class Result(msgspec.Struct):
    """Texts a second, the median of the rounds, and the median of the ratios of each round."""

    callers: int
    texts: int
    batches: float
    triton: float
    ratio: float
    difference: float  # largest, between the numbers of an embedding from the two ways


@click.command(help=(__doc__ or "").split("\n\n")[0])
@click.option("--callers", default=64, show_default=True, help="Concurrent requests.")
@click.option("--texts", default=640, show_default=True, help="Texts of a round.")
@click.option("--rounds", default=5, show_default=True)
@click.option("--threads", type=int, default=2, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on one line.")
def command(callers: int, texts: int, rounds: int, threads: int, as_json: bool) -> None:
    """Measure and print."""
    sys.path.append(str(Path(__file__).parents[2] / "tests" / "support" / "deployed"))
    from triton_server import triton_server

    given = (evaluation_texts() * (texts // 160 + 1))[:texts]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        bundle = Bundle.open(exported("minilm", folder))
        deploy_triton([f"minilm={bundle.path}"], folder / "models", batch_size=BATCH, threads=threads)
        # Neither engine spins, or the idle one would take the processor from the other.
        with (
            triton_server(folder / "models", folder) as server,
            TextRunner(bundle, threads=threads, spinning=False) as runner,
        ):
            result = measure(runner, f"http://{server.http}/v2/models/minilm/infer", given, callers, rounds)
    click.echo(msgspec.json.encode(result).decode() if as_json else line(result))


def measure(runner: TextRunner, address: str, texts: Sequence[str], callers: int, rounds: int) -> Result:
    """Let the two ways take turns."""

    async def batches() -> Embeddings:
        found = [runner.run(texts[start : start + BATCH]) for start in range(0, len(texts), BATCH)]
        return np.array([result.embedding for batch in found for result in batch])

    async def served() -> Embeddings:
        return await ask(address, texts, callers)

    ways: list[Callable[[], Awaitable[Embeddings]]] = [batches, served]
    first, second = (asyncio.run(way()) for way in ways)  # type: ignore[arg-type]  # also warms up
    difference = float(np.abs(first - second).max())
    if difference > CLOSE:
        raise SystemExit(f"the embeddings differ by {difference}, expected at most {CLOSE}")
    seconds = [[_seconds(way) for way in ways] for _ in track(range(rounds), "measuring")]
    speeds = [len(texts) / statistics.median(each) for each in zip(*seconds, strict=True)]
    ratio = statistics.median(each[0] / each[1] for each in seconds)
    return Result(callers, len(texts), speeds[0], speeds[1], ratio, difference)


async def ask(address: str, texts: Sequence[str], callers: int) -> Embeddings:
    """Embed each text by a request of its own, `callers` at a time, with binary tensors."""
    aiohttp = load("aiohttp")
    found: list[Embeddings] = [np.empty(0, np.float32)] * len(texts)
    waiting = iter(range(len(texts)))
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=callers)) as session:

        async def caller() -> None:
            for place in waiting:
                body, headers = request(texts[place])
                async with session.post(address, data=body, headers=headers) as response:
                    content = await response.read()
                    response.raise_for_status()
                    found[place] = np.frombuffer(content[int(response.headers[HEADER]) :], np.float32)

        await asyncio.gather(*(caller() for _ in range(callers)))
    return np.array(found)


def request(text: str) -> tuple[bytes, dict[str, str]]:
    """The body and headers of a request in Triton's binary extension of the protocol."""
    encoded = text.encode()
    content = len(encoded).to_bytes(4, "little") + encoded
    given = {"name": "text_input", "shape": [1, 1], "datatype": "BYTES"}
    wanted = {"name": "embedding", "parameters": {"binary_data": True}}
    described = {"inputs": [given | {"parameters": {"binary_data_size": len(content)}}], "outputs": [wanted]}
    head = json.dumps(described).encode()
    return head + content, {HEADER: str(len(head)), "Content-Type": "application/octet-stream"}


def _seconds(way: Callable[[], Awaitable[Embeddings]]) -> float:
    began = time.perf_counter()
    asyncio.run(way())  # type: ignore[arg-type]
    return time.perf_counter() - began


def line(result: Result) -> str:
    """For people."""
    return (
        f"{result.texts} texts: {result.batches:.0f} texts/s in batches of {BATCH} in one process, "
        f"{result.triton:.0f} over HTTP through Triton, {result.callers} callers\n"
        f"  ratio {result.ratio:.2f} (at least {TARGET}), largest difference {result.difference:.1e}"
    )


if __name__ == "__main__":
    command(prog_name="python -m benchmarks.serving.triton_throughput")
