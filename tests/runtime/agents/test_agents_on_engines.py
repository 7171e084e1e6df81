"""Agents on real engines and a real server, whose random models generate under the grammars."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_checks import Events, answered, check_plans, nothing_left, small_tools, tools
from chat_bundles import TEMPLATE, long_chat_bundle
from covering import few
from event_loops import run
from scripted_model import Changed
from served import Served, served

from intaglio.runtime.agents.loops.agent import Agent, AgentLimits, AgentResult
from intaglio.runtime.agents.loops.function_calling import FunctionCalling
from intaglio.runtime.agents.loops.joiner import read_decision
from intaglio.runtime.agents.loops.llm_compiler import LLMCompiler
from intaglio.runtime.agents.loops.react import ReAct
from intaglio.runtime.agents.models.engine_model import EngineModel
from intaglio.runtime.agents.models.model import Model, ModelRequest
from intaglio.runtime.agents.models.server_model import ServerModel
from intaglio.runtime.agents.run.events import ModelBegan, ModelEnded, PlanFailed, TaskStarted
from intaglio.runtime.generation.generate import TextGenerator
from intaglio.runtime.strategies.plain import MAX_FORCED

SECONDS = 60
LIMITS = AgentLimits(max_replans=1, max_request_tokens=300, max_model_calls=5)
PLAN = 'Thought: both\n1. search("Asia")\n2. search("Africa")\n3. join()'
FORCED = [f'start: "{each}"' for each in (PLAN.replace('"', '\\"').replace("\n", "\\n"), "Answer: by 14 million")]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random decoder with a context of 8192 tokens."""
    path = tmp_path_factory.mktemp("chat") / "llama"
    long_chat_bundle(path)
    return path


@pytest.fixture(scope="module")
def generator(bundle: Path) -> Iterator[TextGenerator]:
    """Two rows of it."""
    with TextGenerator(bundle, batch=2) as opened:
        yield opened


@pytest.fixture(scope="module")
def server(bundle: Path) -> Iterator[Served]:
    """`intaglio serve` with it."""
    with served(f"lm={bundle}", "--rows", 2) as running:
        yield running


class Forced:
    """Generates the given texts, one for each request: the grammars allow nothing else."""

    def __init__(self, model: Model, grammars: list[str]):
        self.name, self.constrained = model.name, True
        self._model, self._grammars = model, iter(grammars)

    def stream(self, request: ModelRequest) -> Any:
        """See `Model`."""
        return Changed(self._model, grammar=next(self._grammars)).stream(request)


@pytest.mark.parametrize("seed", few(range(20), range(5)))
def test_random_model_under_the_grammar_generates_valid_plans(generator: TextGenerator, seed: int) -> None:
    async def main() -> tuple[AgentResult, Changed, Events]:
        events = Events()
        async with EngineModel(generator) as engine:
            model = Changed(engine, temperature=1.0, seed=seed)
            return await answered(LLMCompiler(model, small_tools(), LIMITS), events), model, events

    result, model, events = run(main(), SECONDS)
    check_plans(result, model, small_tools())
    assert all(each.status == "done" for each in result.observations.values()) or "expected" in str(
        [each.error for each in result.observations.values()]
    )
    for failed in events.of(PlanFailed):
        assert "limit" in failed.reason  # no plan had an error
    assert result.complete or "limit" in result.answer


@pytest.mark.parametrize("seed", few(range(6), range(3)))
def test_random_model_under_the_turn_grammar_calls_or_answers(generator: TextGenerator, seed: int) -> None:
    async def main() -> AgentResult:
        async with EngineModel(generator) as engine:
            return await answered(ReAct(Changed(engine, temperature=1.0, seed=seed), small_tools(), LIMITS))

    result = run(main(), SECONDS)
    called = [text for text in result.plans if read_decision(text) is None]
    assert len(result.observations) in (len(called), len(called) - 1)  # the last may be cut off
    assert result.complete or "limit" in result.answer


def test_joiner_prefills_only_new_tokens(generator: TextGenerator) -> None:
    async def main() -> tuple[AgentResult, Events]:
        events = Events()
        async with EngineModel(generator) as engine:
            return await answered(LLMCompiler(Forced(engine, FORCED), tools(0.0)), events), events

    result, events = run(main(), SECONDS)
    assert (result.answer, result.complete, result.plans) == ("by 14 million", True, (PLAN,))
    planner, joiner = events.of(ModelEnded)
    assert planner.completion_tokens >= len(PLAN)
    # The planner's last tokens are not in the cache: forced tokens are processed with the next one.
    assert joiner.cached_tokens >= planner.prompt_tokens + len(PLAN) - 1 - MAX_FORCED
    assert result.usage.prompt == planner.prompt_tokens + joiner.prompt_tokens


def test_template_that_changes_the_plan_keeps_the_prompts_prefix(tmp_path: Path) -> None:
    """`TEMPLATE` writes a space before the assistant's text, generation does not."""
    long_chat_bundle(tmp_path / "llama", TEMPLATE)

    async def main(generator: TextGenerator) -> Events:
        events = Events()
        async with EngineModel(generator) as engine:
            await answered(LLMCompiler(Forced(engine, FORCED), tools(0.0)), events)
        return events

    with TextGenerator(tmp_path / "llama") as generator:
        planner, joiner = run(main(generator), SECONDS).of(ModelEnded)
    assert planner.prompt_tokens <= joiner.cached_tokens < planner.prompt_tokens + len(PLAN)


def test_first_tool_starts_before_the_plan_ends(generator: TextGenerator) -> None:
    async def main(streaming: bool) -> Events:
        events = Events()
        async with EngineModel(generator) as engine:
            await answered(LLMCompiler(Forced(engine, FORCED), tools(0.0), streaming=streaming), events)
        return events

    for streaming in (True, False):
        events = run(main(streaming), SECONDS)
        started, ended = events.one(TaskStarted, number=1).seconds, events.one(ModelEnded, request=1).seconds
        assert (started < ended) == streaming


def test_two_runs_share_an_engine(generator: TextGenerator) -> None:
    async def main() -> list[AgentResult]:
        async with EngineModel(generator) as engine:
            return await asyncio.gather(
                *(LLMCompiler(Forced(engine, FORCED), tools(0.0)).run(f"question {each}") for each in range(3))
            )

    assert [each.answer for each in run(main(), SECONDS)] == ["by 14 million"] * 3


def test_cancelled_or_timed_out_run_frees_the_engine(generator: TextGenerator) -> None:
    async def main() -> None:
        async with EngineModel(generator) as engine:
            model = Changed(engine, grammar='start: "Thought: " /[ab]{2000}/')
            limits = AgentLimits(max_seconds=0.3, max_request_tokens=4000)
            result = await answered(LLMCompiler(model, small_tools(), limits))
            assert "the run reached its limit of 0.3 s" in result.answer
            agents: list[Agent] = [LLMCompiler(model, small_tools()), ReAct(model, small_tools())]
            for agent in agents:
                task = asyncio.create_task(agent.run("Why?"))
                await asyncio.sleep(0.1)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            async with asyncio.timeout(5):
                while generator.scheduler.load()[:2] != (0, 0):
                    await asyncio.sleep(0.01)

    with nothing_left(processes=False):  # the one that checks grammars stays
        run(main(), SECONDS)


def test_too_short_context_ends_the_run_with_the_reason(chat_models: tuple[Path, Path]) -> None:
    async def main(generator: TextGenerator) -> list[AgentResult]:
        async with EngineModel(generator) as engine:
            agents: list[Agent] = [LLMCompiler(engine, small_tools()), ReAct(engine, small_tools())]
            return [await answered(agent) for agent in agents]

    with TextGenerator(chat_models[0]) as generator:
        for result in run(main(generator), SECONDS):
            assert "No answer: prompt of" in result.answer and "the model takes at most 256" in result.answer


@pytest.mark.parametrize("seed", range(3))
def test_function_calling_on_the_engine_ends_with_an_answer(chat_models: tuple[Path, Path], seed: int) -> None:
    """The large language model of this repository, under the grammar of its calls."""

    async def main(generator: TextGenerator) -> tuple[AgentResult, Events]:
        events = Events()
        async with EngineModel(generator) as engine:
            model = Changed(engine, temperature=1.0, seed=seed, tool_choice="required")
            limits = AgentLimits(max_request_tokens=120, max_model_calls=2)
            return await answered(FunctionCalling(model, small_tools(), limits), events), events

    with TextGenerator(chat_models[1]) as generator:
        result, events = run(main(generator), SECONDS)
    assert (not result.complete and "limit" in result.answer) or "No answer: prompt of" in result.answer
    assert len(events.of(TaskStarted)) == sum(each.began is not None for each in result.observations.values())


@pytest.mark.parametrize("seed", range(3))
def test_server_with_grammars_generates_valid_plans(server: Served, seed: int) -> None:
    async def main() -> tuple[AgentResult, Changed, Events]:
        events = Events()
        async with ServerModel(server.url, "lm", constrained=True) as opened:
            model = Changed(opened, temperature=1.0, seed=seed)
            return await answered(LLMCompiler(model, small_tools(), LIMITS), events), model, events

    with nothing_left():
        result, model, events = run(main(), SECONDS)
    check_plans(result, model, small_tools())
    assert events.of(ModelEnded)[0].prompt_tokens > 900
    assert result.complete or "limit" in result.answer


def test_server_without_grammars_ends_the_run_with_an_answer(server: Served) -> None:
    async def main() -> list[AgentResult]:
        async with ServerModel(server.url, "lm") as model:
            limits = AgentLimits(max_replans=1, max_request_tokens=50, max_model_calls=3)
            agents: list[Agent] = [LLMCompiler(model, small_tools(), limits), ReAct(model, small_tools(), limits)]
            return [await answered(agent) for agent in agents]

    for result in run(main(), SECONDS):
        assert not result.complete and "limit of" in result.answer


@pytest.mark.proof
def test_server_killed_during_a_stream_ends_the_run_with_the_reason(bundle: Path) -> None:
    with served(f"lm={bundle}") as doomed:

        def observer(event: Any) -> None:
            events(event)
            if isinstance(event, TaskStarted):
                doomed.process.kill()
                doomed.process.wait()

        async def main() -> AgentResult:
            endless = PLAN.split("\n3")[0].replace('"', '\\"').replace("\n", "\\n")
            grammar = f'start: "{endless}" /\\n#[ab]*/'
            async with ServerModel(doomed.url, "lm", constrained=True) as opened:
                model = Changed(opened, grammar=grammar)
                limits = AgentLimits(max_request_tokens=6000)
                return await LLMCompiler(model, tools(3.0), limits).run("Why?", observer)

        events = Events()
        with nothing_left():
            result = run(main(), SECONDS)
    assert result.answer.startswith(f"No answer: model server {doomed.url}/v1")
    assert result.answer.endswith("tool calls have a result.") and not result.complete
    assert result.seconds < 20
    assert len(events.of(ModelBegan)) == len(events.of(ModelEnded)) == 2  # the plan is requested once more
    assert all(ended.error is not None for ended in events.of(ModelEnded))
