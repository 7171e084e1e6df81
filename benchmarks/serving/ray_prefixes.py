"""How much of the prompts do replicas on Ray Serve find in their caches, if the front door knows which has what?

    build/ray/bin/python -m benchmarks.serving.ray_prefixes [--conversations N] [--turns N] [--rounds N] [--json]

`make ray-test` makes the environment. One application offers the same decoder twice, with two replicas each: behind the
router that is deployed, which prefers the replica that holds the longest prefix of a prompt, and behind Ray's own,
which takes the one of two replicas with fewer requests. Concurrent conversations ask both in turns: each request is
all of the conversation so far and some more words. The share is prompt tokens that were in a cache, of all
prompt tokens; the first turns have nothing in common. The ratio is the share with the router to that without.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import click
import msgspec
import yaml

from benchmarks.shared.serving import exported
from benchmarks.shared.texts import evaluation_texts
from intaglio.deploy import deploy_ray
from intaglio.display.progress import track
from intaglio.extras import load

PORT = 18201
TOKENS = 8  # that are generated in each turn
WORDS = 8  # that are added in each turn


class Result(msgspec.Struct):
    """Shares of prompt tokens from a cache, the medians of the rounds."""

    conversations: int
    turns: int
    without: float
    routed: float
    ratio: float


@click.command(help=(__doc__ or "").split("\n\n")[0])
@click.option("--conversations", default=12, show_default=True, help="Concurrent ones.")
@click.option("--turns", default=8, show_default=True, help="Requests of each.")
@click.option("--rounds", default=5, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on one line.")
def command(conversations: int, turns: int, rounds: int, as_json: bool) -> None:
    """Measure and print."""
    sys.path.append(str(Path(__file__).parents[2] / "tests" / "support" / "deployed"))
    from ray_server import ray_server

    with tempfile.TemporaryDirectory() as name, exported(None) as bundle:
        file = Path(name) / "app.yaml"
        deploy_ray([f"routed={bundle}", f"without={bundle}"], file, min_replicas=2, port=PORT)
        content = yaml.safe_load(file.read_text())
        del content["applications"][0]["deployments"][2]["request_router_config"]
        file.write_text(yaml.safe_dump(content))
        with ray_server(file, PORT) as server:
            for model in ("routed", "without"):
                server.wait_for_replicas(model, 2)
            found = [
                [asyncio.run(share(server.url, model, conversations, turns, seed)) for model in ("without", "routed")]
                for seed in track(range(rounds), "measuring")
            ]
    without, routed = (statistics.median(each) for each in zip(*found, strict=True))
    result = Result(conversations, turns, without, routed, statistics.median(two / one for one, two in found))
    click.echo(msgspec.json.encode(result).decode() if as_json else line(result))


async def share(url: str, model: str, conversations: int, turns: int, seed: int) -> float:
    """Of prompt tokens from a cache, in `conversations` at the same time; each `seed` has other texts."""
    aiohttp = load("aiohttp")
    words = " ".join(evaluation_texts()).split()
    cached = total = 0

    async def converse(number: int, session: Any) -> None:
        nonlocal cached, total
        place = (seed * conversations + number) * turns * WORDS
        prompt = ""
        for turn in range(turns):
            begin = (place + turn * WORDS) % len(words)
            prompt += f"\n{seed} {number} {' '.join((words * 2)[begin : begin + WORDS])}\n"
            body = {"model": model, "prompt": prompt, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
            async with session.post(f"{url}/v1/completions", json=body) as response:
                found = await response.json()
                assert response.status == 200, found
            prompt += found["choices"][0]["text"]
            cached += found["usage"]["prompt_tokens_details"]["cached_tokens"]
            total += found["usage"]["prompt_tokens"]

    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(600)) as session:
        await asyncio.gather(*(converse(number, session) for number in range(conversations)))
    return cached / total


def line(result: Result) -> str:
    """For people."""
    return (
        f"{result.conversations} conversations of {result.turns} turns on two replicas of 8 rows: "
        f"{result.without:.0%} of the prompt tokens cached behind Ray's router, {result.routed:.0%} behind ours\n"
        f"  ratio {result.ratio:.2f}"
    )


if __name__ == "__main__":
    command(prog_name="python -m benchmarks.serving.ray_prefixes")
