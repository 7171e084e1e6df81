"""What does a second replica on Ray Serve add to the throughput of one?

    build/ray/bin/python -m benchmarks.serving.ray_throughput [--decoder] [--callers N] [--seconds S] [--rounds N]
        [--passages N] [--sentences N] [--json]

`make ray-test` makes the environment. One application offers the same bundle twice, with one replica and with two, each
replica with one thread; callers ask one and then the other over HTTP, through Ray's proxy and the front door, and the
ratio is the median of those of the rounds. Beside it stand the cores that the replicas took, and those that the
callers, the proxy, the front door and Ray took, on average. The model is the real MiniLM, 8 passages of eight sentences
a request; with --decoder a LLaMA of 58 million random parameters in float32, 64 new tokens a request, 8 rows, which
callers have to fill in both replicas. A replica keeps one core busy, so the machine needs a core for each, and more for
all else. The target is 1.8.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeAlias

import click
import msgspec
import psutil
import yaml

from benchmarks.encoding.integer_encoder import exported
from benchmarks.shared.random_llama import Shape, checkpoint
from benchmarks.shared.serving import verdict
from benchmarks.shared.texts import evaluation_texts
from intaglio.deploy import deploy_ray
from intaglio.display.progress import track
from intaglio.exporters import export
from intaglio.extras import load

TARGET = 1.8
PORT = 18200
BEGINNING = 5.0  # seconds until requests end as evenly as they begin
TOKENS = 64  # of a request
SMALL = Shape(hidden=512, feed_forward=1408, layers=8, heads=8)


Body: TypeAlias = Callable[[int], tuple[str, Mapping[str, object]]]  # of a request: its path and its fields


class Result(msgspec.Struct):
    """Tokens a second, the medians of the rounds, and the median of the ratios of each round."""

    callers: int
    processors: int
    load: float  # of the machine, before: processes that ran or waited, on average over a minute
    one: float
    two: float
    ratio: float
    ratios: list[float]
    replicas: float  # cores, on average over the rounds
    way: float  # cores of the callers, the proxy, the front door and Ray


@click.command(help=(__doc__ or "").split("\n\n")[0])
@click.option("--decoder", is_flag=True, help="A decoder in the place of MiniLM.")
@click.option("--callers", default=8, show_default=True, help="Concurrent requests.")
@click.option("--seconds", default=15.0, show_default=True, help="Of a measurement.")
@click.option("--rounds", default=5, show_default=True)
@click.option("--passages", default=8, show_default=True, help="Of a request to MiniLM.")
@click.option("--sentences", default=8, show_default=True, help="Of a passage.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on one line.")
def command(
    decoder: bool, callers: int, seconds: float, rounds: int, passages: int, sentences: int, as_json: bool
) -> None:
    """Measure and print."""
    sys.path.append(str(Path(__file__).parents[2] / "tests" / "support" / "deployed"))
    from ray_server import ray_server

    load_before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if decoder:
            bundle = folder / "model"
            export(str(checkpoint(folder / "checkpoint", SMALL, "float32")), bundle, check=False)
        else:
            bundle = exported("minilm", folder)
        application(bundle, folder / "app.yaml")
        with ray_server(folder / "app.yaml", PORT, processors=3) as server:
            server.wait_for_replicas("two", 2)

            def body(model: str) -> Body:
                return partial(completion, model) if decoder else partial(embedding, model, passages, sentences)

            def both(duration: float) -> list[float]:
                return [asyncio.run(measure(body(model), server.url, callers, duration)) for model in ("one", "two")]

            both(3.0)  # warms up
            replicas = {process for model in ("one", "two") for process in server.processes(model)}
            before, began = processor_seconds(replicas), time.perf_counter()
            found = [both(seconds) for _ in track(range(rounds), "measuring")]
            elapsed = time.perf_counter() - began
            used = [(end - begin) / elapsed for begin, end in zip(before, processor_seconds(replicas), strict=True)]
    ratios = [two / one for one, two in found]
    speeds = [statistics.median(each) for each in zip(*found, strict=True)]
    processors = len(os.sched_getaffinity(0))
    ratio = statistics.median(ratios)
    result = Result(callers, processors, load_before, *speeds, ratio, ratios, *used)
    click.echo(msgspec.json.encode(result).decode() if as_json else line(result))


def application(bundle: Path, file: Path) -> None:
    """Write it: deploy_ray gives all models as many replicas, here the first has one and the second two."""
    deploy_ray([f"one={bundle}", f"two={bundle}"], file, port=PORT)
    content = yaml.safe_load(file.read_text())
    content["applications"][0]["deployments"][2]["num_replicas"] = 2
    file.write_text(yaml.safe_dump(content))


all_texts = cache(evaluation_texts)


def processor_seconds(replicas: set[int]) -> tuple[float, float]:
    """Of the `replicas` until now, and of this program and all others that it has started."""
    inside = outside = 0.0
    own = psutil.Process()
    for process in (own, *own.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            used = process.cpu_times()
            if process.pid in replicas:
                inside += used.user + used.system
            else:
                outside += used.user + used.system
    return inside, outside


async def measure(body: Body, url: str, callers: int, seconds: float) -> float:
    """Tokens a second of the requests that end within `seconds`, while all callers ask; new ones or those embedded."""
    aiohttp = load("aiohttp")
    done = 0
    begins = time.perf_counter() + BEGINNING
    until = begins + seconds

    async def caller(number: int, session: Any) -> None:
        nonlocal done
        while time.perf_counter() < until:
            number += callers
            path, fields = body(number)
            async with session.post(url + path, json=fields) as response:
                found = await response.json()
                assert response.status == 200, found
            if begins <= time.perf_counter() < until:
                done += found["usage"].get("completion_tokens", found["usage"]["prompt_tokens"])

    connector = aiohttp.TCPConnector(limit=callers)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(600)) as session:
        await asyncio.gather(*(caller(number, session) for number in range(callers)))
    return done / seconds


def completion(model: str, number: int) -> tuple[str, Mapping[str, object]]:
    """The path and the body of a request; successive ones have different texts."""
    texts = all_texts()
    prompt = f"{number} {texts[number % len(texts)]}"
    fields = {"model": model, "prompt": prompt, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
    return "/v1/completions", fields


def embedding(model: str, passages: int, sentences: int, number: int) -> tuple[str, Mapping[str, object]]:
    """As `completion`."""
    texts = all_texts()
    starts = [(number * passages + each) * sentences for each in range(passages)]
    joined = [" ".join(texts[(start + each) % len(texts)] for each in range(sentences)) for start in starts]
    return "/v1/embeddings", {"model": model, "input": joined}


def line(result: Result) -> str:
    """For people."""
    return (
        f"{result.callers} callers, {result.processors} processors, load before {result.load:.1f}: "
        f"{result.one:.0f} tokens/s with one replica, {result.two:.0f} with two; "
        f"ratios {', '.join(f'{each:.2f}' for each in result.ratios)}; the replicas took {result.replicas:.2f} cores, "
        f"all else {result.way:.2f}\n  " + verdict("ratio", result.ratio, TARGET)
    )


if __name__ == "__main__":
    command(prog_name="python -m benchmarks.serving.ray_throughput")
