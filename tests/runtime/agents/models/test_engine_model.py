"""A bundle as the model of an agent: texts, tool calls, shared rows and caches, cancellation, failures."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from asking import QUESTION, ask
from failing_engine import Failing

from intaglio.errors import BundleError, UsageError
from intaglio.runtime.agents.models.engine_model import EngineModel
from intaglio.runtime.agents.models.model import End, ModelError, ModelPiece, ModelRequest, Usage
from intaglio.runtime.agents.tools.tool import Tool
from intaglio.runtime.generation.generate import TextGenerator
from intaglio.runtime.generation.requests.message import Message
from intaglio.runtime.generation.scheduling.events import Failed, Finished
from intaglio.runtime.generation.scheduling.observer import Pass
from intaglio.runtime.generation.scheduling.request_state import RequestState
from intaglio.runtime.sessions import decoder as decoder_session

SECONDS = 60  # of any one test's loop
LONG = [Message("user", "word " * 300)]
DIGITS = "start: /[0-9]{3}-[0-9]{4}/"
PLACE = {
    "type": "object",
    "properties": {"place": {"enum": ["Ulm", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["place", "days"],
    "additionalProperties": False,
}
TOOLS = [Tool("weather", "Forecast.", PLACE, print), Tool("now", "The time.", {"type": "object"}, print)]


@pytest.fixture(scope="module")
def generator(chat_models: tuple[Path, Path]) -> Iterator[TextGenerator]:
    """Two rows of the trained language model."""
    with TextGenerator(chat_models[1], batch=2) as opened:
        yield opened


@asynccontextmanager
async def opened(generator: TextGenerator) -> AsyncIterator[EngineModel]:
    async with asyncio.timeout(SECONDS), EngineModel(generator, "lm") as model:
        yield model


async def idle(generator: TextGenerator, seconds: float = 5) -> None:
    """Wait until no row is busy."""
    async with asyncio.timeout(seconds):
        while generator.scheduler.load()[:2] != (0, 0):
            await asyncio.sleep(0.005)


class Ends:
    """Records why requests ended, in order."""

    def __init__(self, generator: TextGenerator):
        self.reasons: list[str] = []
        generator.scheduler.observer = self

    def admitted(self, state: RequestState) -> None:
        pass

    def finished(self, event: Finished | Failed) -> None:
        self.reasons.append(event.result.stopped if isinstance(event, Finished) else str(event.error))

    def passed(self, observed: Pass) -> None:
        pass


def alone(bundle: Path, messages: Sequence[Message] = QUESTION, most: int = 12, **options: Any) -> Any:
    with TextGenerator(bundle, max_new_tokens=most, **options) as generator:
        return generator.write(messages).whole()


def test_pieces_add_up_to_the_text_of_generate(generator: TextGenerator, chat_models: tuple[Path, Path]) -> None:
    async def main() -> Any:
        async with opened(generator) as model:
            return await ask(model)

    text, calls, end = asyncio.run(main())
    expected = alone(chat_models[1])
    assert text == expected.text
    assert calls == []
    usage = end.usage._replace(cached=0)  # another test may have asked the same
    assert End(usage, end.finish_reason) == End(Usage(expected.prompt_tokens, 0, 12, 1), "length")


def test_second_turn_prefills_only_new_tokens(
    chat_models: tuple[Path, Path],
) -> None:
    async def main(generator: TextGenerator) -> Any:
        async with opened(generator) as model:
            plan, _, first = await ask(model, most=20)
            after = [*QUESTION, Message("assistant", plan), Message("user", "The results: 1, 2. Answer now.")]
            return first.usage, (await ask(model, after))[2].usage

    for options in ({}, {"draft": chat_models[0], "strategy": "speculative"}):
        with TextGenerator(chat_models[1], **options) as generator:  # type: ignore[arg-type]
            planner, joiner = asyncio.run(main(generator))
        assert planner.cached == 0
        assert planner.prompt <= joiner.cached < joiner.prompt  # at least the planner's prompt, and mostly its text


def test_two_batched_requests_equal_single_requests(generator: TextGenerator) -> None:
    other = [Message("user", "And a class?")]
    order: list[int] = []

    async def one(model: EngineModel, number: int, messages: Sequence[Message]) -> str:
        text = ""
        async with model.stream(ModelRequest(messages, 40)) as pieces:
            async for piece in pieces:
                order.append(number)
                text += piece if isinstance(piece, str) else ""
        return text

    async def main() -> Any:
        async with opened(generator) as model:
            together = await asyncio.gather(one(model, 0, QUESTION), one(model, 1, other))
            turns = sum(left != right for left, right in pairwise(order))
            return together, turns, [(await ask(model, each, 40))[0] for each in (QUESTION, other)]

    together, turns, each = asyncio.run(main())
    assert together == each
    assert turns > 10  # they ran concurrently


@pytest.mark.parametrize("options", [{}, {"temperature": 1.3, "seed": 3}])
def test_speculative_strategy_obeys_the_grammar(chat_models: tuple[Path, Path], options: dict[str, Any]) -> None:
    async def main() -> Any:
        async with opened(generator) as model:
            return await ask(model, most=60, grammar=DIGITS, **options)

    with TextGenerator(chat_models[1], draft=chat_models[0], strategy="speculative") as generator:
        text, _, end = asyncio.run(main())
    assert re.fullmatch("[0-9]{3}-[0-9]{4}", text)
    assert end.finish_reason == "stop"
    if not options:
        assert text == alone(chat_models[1], most=60, grammar=DIGITS).text


def test_seed_determines_the_text(generator: TextGenerator) -> None:
    async def main() -> list[str]:
        async with opened(generator) as model:
            return [(await ask(model, temperature=1.0, seed=seed))[0] for seed in (1, 1, 2)]

    first, again, other = asyncio.run(main())
    assert first == again != other


def test_stop_string_ends_the_text_and_is_removed(generator: TextGenerator) -> None:
    async def main() -> Any:
        async with opened(generator) as model:
            whole = (await ask(model))[0]
            stop = whole.strip()[5:8]
            return whole, stop, await ask(model, stop=[stop])

    whole, stop, (text, _, end) = asyncio.run(main())
    assert text == whole[: whole.index(stop)]
    assert end.finish_reason == "stop"


def test_text_stops_at_the_context_limit(chat_models: tuple[Path, Path]) -> None:
    async def main() -> Any:
        async with opened(generator) as model:
            return await ask(model, [Message("user", "Why?")], most=100_000)

    with TextGenerator(chat_models[1], ignore_eos=True) as generator:
        _, _, end = asyncio.run(main())
        assert (end.usage.prompt + end.usage.completion, end.finish_reason) == (generator.limit, "length")


@pytest.mark.parametrize("seed", range(3))
def test_required_calls_are_complete_and_match_the_schema(generator: TextGenerator, seed: int) -> None:
    async def main() -> Any:
        async with opened(generator) as model:
            return await ask(model, most=200, tools=TOOLS, tool_choice="required", temperature=1.2, seed=seed)

    text, calls, end = asyncio.run(main())
    assert text == "" or end.finish_reason == "length"  # cut off between two calls
    assert len({call.id for call in calls}) == len(calls)
    for call in calls:
        arguments = json.loads(call.function.arguments)
        assert call.function.name in ("weather", "now")
        if call.function.name == "weather":
            assert arguments.keys() == {"place", "days"}
    assert (end.finish_reason == "tool_calls") == (end.usage.completion < 200)
    assert calls or end.finish_reason == "length"


def test_truncated_call_is_dropped(generator: TextGenerator) -> None:
    async def main() -> Any:
        async with opened(generator) as model:
            return await ask(model, most=30, tools=TOOLS[:1], tool_choice="required")

    text, calls, end = asyncio.run(main())
    assert (text, calls, end.finish_reason, end.usage.completion) == ("", [], "length", 30)


def test_tool_choice_none_generates_no_call(generator: TextGenerator) -> None:
    async def main() -> Any:
        async with opened(generator) as model:
            await ask(model, tools=TOOLS, tool_choice="required")
            return await ask(model, tools=TOOLS, tool_choice="none")

    text, calls, end = asyncio.run(main())
    assert text and not calls
    assert end.usage.cached > 0  # the prompt is the same


def test_leaving_the_context_frees_the_row(chat_models: tuple[Path, Path]) -> None:
    async def main(generator: TextGenerator) -> Any:
        async with opened(generator) as model:
            async with model.stream(ModelRequest(QUESTION, 200)) as pieces:
                first = await anext(pieces)
                assert generator.scheduler.load().running == 1
            await idle(generator)
            assert isinstance(first, str)
            with pytest.raises(StopAsyncIteration):
                await anext(pieces)
            return (await ask(model))[2].usage.completion

    with TextGenerator(chat_models[1], ignore_eos=True) as generator:
        ends = Ends(generator)
        assert asyncio.run(main(generator)) == 12
    assert ends.reasons == ["interrupted", "length"]


def test_cancelled_task_frees_the_row_for_a_waiting_request(chat_models: tuple[Path, Path]) -> None:
    async def read(model: EngineModel) -> list[ModelPiece]:
        async with model.stream(ModelRequest(QUESTION, 200)) as pieces:
            return [piece async for piece in pieces]

    async def main(generator: TextGenerator) -> Any:
        async with opened(generator) as model:
            running = asyncio.create_task(read(model))
            while not generator.scheduler.load().running:
                await asyncio.sleep(0.005)
            waiting = asyncio.create_task(ask(model, most=2))
            while not generator.scheduler.load().waiting:
                await asyncio.sleep(0.005)
            running.cancel()
            _, _, end = await waiting
            assert running.cancelled()
            await idle(generator)
            return end.usage.completion

    with TextGenerator(chat_models[1], ignore_eos=True) as generator:
        ends = Ends(generator)
        assert asyncio.run(main(generator)) == 2
    assert ends.reasons == ["interrupted", "length"]


def test_engine_error_fails_the_request_and_the_next_succeeds(
    chat_models: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = decoder_session.open_engine

    async def main(generator: TextGenerator) -> Any:
        async with opened(generator) as model:
            with pytest.raises(ModelError, match=r"^model 'lm': the device is lost$"):
                await ask(model)
            return await ask(model)

    with monkeypatch.context() as patched:
        patched.setattr(decoder_session, "open_engine", lambda *given, **more: Failing(real(*given, **more), 4))
        generator = TextGenerator(chat_models[1])
    with generator:
        text, _, end = asyncio.run(main(generator))
    assert text == alone(chat_models[1]).text
    assert end.usage.cached == 0


def test_dead_worker_thread_fails_every_request(
    chat_models: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main(generator: TextGenerator) -> None:
        real, steps = generator.scheduler.step, iter(range(6))

        def step() -> Any:
            if next(steps, None) is None:
                raise SystemExit("on purpose")
            return real()

        monkeypatch.setattr(generator.scheduler, "step", step)
        async with opened(generator) as model:
            ended = await asyncio.gather(ask(model, most=90), ask(model, most=90), return_exceptions=True)
            for error in ended:
                assert isinstance(error, ModelError)
                assert "the model has stopped, a bug in intaglio (on purpose)" in str(error)
            with pytest.raises(ModelError, match="is closed, or has stopped"):
                await ask(model)

    with TextGenerator(chat_models[1]) as generator:  # one of the requests waits
        asyncio.run(main(generator))


def test_closing_the_model_ends_its_stream_and_frees_the_generator(generator: TextGenerator) -> None:
    async def main() -> Any:
        async with asyncio.timeout(SECONDS):
            model = EngineModel(generator, "lm")
            async with model:
                task = asyncio.create_task(ask(model, most=200))
                while not generator.scheduler.load().running:
                    await asyncio.sleep(0.005)
                began = time.perf_counter()
            left = time.perf_counter() - began
            with pytest.raises(ModelError, match="was closed before the text was finished"):
                await task
            with pytest.raises(ModelError, match=r"^model 'lm' is not open\. Send requests within `async with`\.$"):
                await ask(model)
        async with opened(generator) as model:
            return left, await ask(model), generator.scheduler.load().running

    left, (text, _, _), running = asyncio.run(main())
    assert text
    assert running == 0
    assert left < 5


@pytest.mark.parametrize(
    ("messages", "options", "expected_error"),
    [
        (LONG, {}, r"^prompt of \d+ tokens: the model takes at most 256, including at least one new token\. Shorten"),
        (QUESTION, {"grammar": "start: other"}, "^the Lark grammar cannot be used"),
        (QUESTION, {"grammar": DIGITS, "tools": TOOLS}, "^a request has a grammar and tools"),
        (QUESTION, {"temperature": -1}, r"^temperature -1: expected 0 or more\.$"),
        (QUESTION, {"stop": [""]}, "^a stop string is empty"),
        (QUESTION, {"seed": -1}, "^seed -1"),
        ([Message("user")], {}, "has no content"),
    ],
)
def test_invalid_request_is_rejected_without_a_row(
    generator: TextGenerator, messages: Sequence[Message], options: dict[str, Any], expected_error: str
) -> None:
    async def main() -> None:
        async with opened(generator) as model:
            with pytest.raises(UsageError, match=expected_error):
                await ask(model, messages, **options)
            assert generator.scheduler.load()[:2] == (0, 0)

    asyncio.run(main())


def test_model_without_chat_template_is_rejected_by_name(trained_pair: tuple[Path, Path]) -> None:
    with TextGenerator(trained_pair[0]) as generator, pytest.raises(BundleError) as raised:
        EngineModel(generator)
    assert str(raised.value) == (
        f"bundle {trained_pair[0]}: has no chat template; its model was not trained on conversations. "
        "Use a plain prompt, or a bundle that has one."
    )
