"""Does a server stay correct, fast and of constant size when many clients use it, and when they go away?

    python -m benchmarks.serving.load [--bundle BUNDLE] [--clients 64] [--seconds 60] [--rows 8] [--json]

Prompts whose greedy texts were generated before, one at a time, are requested of `intaglio serve`: by 8 clients and by
64 in turn, and by 64 that leave every fifth request after a few tokens. Every text has to be the one of its prompt
alone, and no request may fail. The tokens per second of 64 clients are divided by those of 8, both over all their
turns, as other programs make the machine slower and faster; the resident memory of the server after the first turn and
after the last is compared; and when all clients of full rows leave at the same time, the time is measured until the
server's metrics report no running request.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections import Counter
from contextlib import aclosing
from pathlib import Path

import click
import msgspec

from benchmarks.shared.serving import Served, exported, resident_bytes, serving, verdict
from intaglio.display.progress import step, track
from intaglio.runtime.generation.generate import TextGenerator
from intaglio.validation.bench.client import Client, RequestError
from intaglio.validation.bench.prompts import of_tokens

PROMPTS = 32
PROMPT_TOKENS = (16, 48, 96, 24)  # of the prompts, in turn
NEW_TOKENS = (24, 64, 40, 96)
FEW = 8  # clients of the phase that the many are compared with
TURNS = 6  # of both
LEAVING = 0.2  # part of the requests that are left
PATH = "/v1/completions"
RUNNING = re.compile(r"^vllm:num_requests_running\{.*\} (\S+)$", re.M)
MORE_MEMORY = 1.05  # allowed growth from the first turn to the last


class Known(msgspec.Struct):
    """A prompt with its text when it is generated alone."""

    prompt: str
    tokens: int
    text: str


class Phase(msgspec.Struct):
    """What some clients got."""

    clients: int
    seconds: float
    finished: int
    wrong: int  # texts that are not those of their prompts alone
    left: int
    errors: dict[str, int]
    tokens_per_second: float  # of finished texts


class Result(msgspec.Struct):
    """All phases."""

    few: Phase
    many: Phase
    leaving: Phase
    ratio: float  # tokens per second of many clients, to those of few
    resident_after_the_first_turn: int
    resident_at_the_end: int
    seconds_until_free: float  # from the leaving of all clients until no request runs


@click.command(help=(__doc__ or "").split("\n\n")[0])
@click.option("--bundle", type=click.Path(path_type=Path), help="A decoder; by default one of the examples.")
@click.option("--clients", default=64, show_default=True)
@click.option("--seconds", default=60.0, show_default=True, help="Of all turns of the many; the others take a third.")
@click.option("--rows", default=8, show_default=True, help="Of the server.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on one line.")
def command(bundle: Path | None, clients: int, seconds: float, rows: int, as_json: bool) -> None:
    """Measure and print."""
    with exported(bundle) as model:
        known = expected(model)
        with serving(model, "--rows", rows) as server:
            result = asyncio.run(measure(server, known, clients, seconds, rows))
    click.echo(msgspec.json.encode(result).decode() if as_json else table(result))


def expected(bundle: Path) -> list[Known]:
    """The texts, each generated alone."""
    found = []
    longest = max(NEW_TOKENS)
    with TextGenerator(bundle, strategy="greedy", ignore_eos=True, max_new_tokens=longest) as generator:
        generator.reuse_prefix = False
        texts = [of_tokens(generator.tokenizer, tokens) for tokens in PROMPT_TOKENS]
        for number in track(range(PROMPTS), "generating alone", PROMPTS):
            prompt, tokens = texts[number % len(texts)][number], NEW_TOKENS[number // 4 % len(NEW_TOKENS)]
            result = generator.write(prompt).whole()
            found.append(Known(prompt, tokens, generator.tokenizer.decode(result.tokens[:tokens])))
    return found


async def measure(server: Served, known: list[Known], clients: int, seconds: float, rows: int) -> Result:
    """Run the phases one after the other."""
    async with Client(server.url) as client:
        (name,) = await client.models()
        await phase(client, name, known, FEW, 1.0)  # warms up
        few, many, resident = list[Phase](), list[Phase](), list[int]()
        for _ in track(range(TURNS), f"{FEW} clients, {clients} clients", TURNS):
            few.append(await phase(client, name, known, FEW, seconds / 3 / TURNS))
            many.append(await phase(client, name, known, clients, seconds / TURNS))
            resident.append(resident_bytes(server.pid))
        with step(f"{clients} clients, some of which leave"):
            leaving = await phase(client, name, known, clients, seconds / 3, LEAVING)
        until_free = await all_leave(client, name, known, rows)
    all_few, all_many = joined(few), joined(many)
    ratio = all_many.tokens_per_second / all_few.tokens_per_second
    return Result(all_few, all_many, leaving, ratio, resident[0], resident[-1], until_free)


def joined(turns: list[Phase]) -> Phase:
    """All turns of a phase as one."""
    seconds = sum(each.seconds for each in turns)
    tokens = sum(each.tokens_per_second * each.seconds for each in turns)
    errors = dict(sum((Counter(each.errors) for each in turns), Counter()))
    finished, wrong, left = (sum(getattr(each, name) for each in turns) for name in ("finished", "wrong", "left"))
    return Phase(turns[0].clients, seconds, finished, wrong, left, errors, tokens / seconds)


async def phase(
    client: Client, model: str, known: list[Known], clients: int, seconds: float, leaving: float = 0.0
) -> Phase:
    """Let each client request one text after the other; a part `leaving` of the requests is left early."""
    found = Phase(clients, 0.0, 0, 0, 0, {}, 0.0)
    errors: Counter[str] = Counter()
    began, tokens = time.perf_counter(), 0

    async def use(number: int) -> None:
        nonlocal tokens
        chance = random.Random(number)
        while time.perf_counter() - began < seconds:
            asked = chance.choice(known)
            body = body_of(model, asked)
            try:
                if chance.random() < leaving:
                    await leave(client, body, chance.randrange(1, 8))
                    found.left += 1
                    continue
                reply = await client.complete(PATH, body)
            except RequestError as error:
                errors[str(error)] += 1
                continue
            found.finished += 1
            tokens += reply.tokens
            found.wrong += reply.text != asked.text or reply.tokens != asked.tokens

    async with asyncio.TaskGroup() as group:
        for number in range(clients):
            group.create_task(use(number))
    found.seconds = time.perf_counter() - began
    found.errors, found.tokens_per_second = dict(errors), tokens / found.seconds
    return found


def body_of(model: str, asked: Known) -> dict[str, object]:
    """The request for a known text."""
    return {
        "model": model, "prompt": asked.prompt, "max_tokens": asked.tokens, "temperature": 0.0, "ignore_eos": True,
    }  # fmt: skip


async def leave(client: Client, body: dict[str, object], events: int) -> None:
    """Read some events of a text, and close the connection."""
    async with aclosing(client.stream(PATH, body)) as stream:
        async for _ in stream:
            events -= 1
            if not events:
                return


async def all_leave(client: Client, model: str, known: list[Known], rows: int) -> float:
    """Fill all rows with long texts, let all clients leave, and return the seconds until no request runs."""
    long = [body_of(model, each) | {"max_tokens": 400} for each in known[:rows]]
    async with asyncio.TaskGroup() as group:
        reading = [group.create_task(leave(client, body, 1000)) for body in long]
        while await running(client) < rows:
            await asyncio.sleep(0.005)
        for task in reading:
            task.cancel()
        left = time.perf_counter()
        while await running(client):
            await asyncio.sleep(0.002)
        return time.perf_counter() - left


async def running(client: Client) -> int:
    """The requests in rows, by the server's metrics."""
    found = RUNNING.search(await client.metrics())
    assert found is not None, "the server reports its running requests"
    return int(float(found[1]))


def table(result: Result) -> str:
    """The result for people."""
    lines = []
    for each in (result.few, result.many, result.leaving):
        lines.append(
            f"{each.clients} clients, {each.seconds:.0f} s: {each.finished} texts, {each.wrong} wrong; "
            f"{each.left} left; errors: {each.errors or 'none'}; {each.tokens_per_second:.0f} tokens/s"
        )
    grown = result.resident_at_the_end / result.resident_after_the_first_turn
    lines += [
        verdict("many clients : few clients, tokens per second", result.ratio, 1.0),
        f"resident memory after the first turn: {result.resident_after_the_first_turn / 1e6:.1f} MB; "
        f"at the end: {result.resident_at_the_end / 1e6:.1f} MB",
        verdict("memory at the end : after the first turn", grown, MORE_MEMORY, at_least=False),
        f"all rows free {1e3 * result.seconds_until_free:.0f} ms after their clients left",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    command(prog_name="python -m benchmarks.serving.load")
