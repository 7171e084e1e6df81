"""How long do the agents take over the tools and the tokens that they wait for?

    python -m benchmarks.agents.speed [--tool-seconds S] [--rounds N] [--json]

Eight independent tools of 200 ms, and six that depend on each other, are called by LLMCompiler, by LLMCompiler without
streaming, and by ReAct, with the same model in the same run. The model is the large one of examples/language_models,
with random weights and 2048 positions, on our own engine: it writes the same calls for every agent, as its grammar
allows their tokens alone, one decode step for each. So each token is computed as in any other text.

The fastest of `--rounds` runs, in turns, after one that is not counted: other programs only add to the time. Ratios of
a whole to its parts are medians. Each agent has an engine of its own, which keeps the agent's instructions in its
cache; the question is another one in each run.

The goals: the independent tools end within 1.10 times the planner's time to its last call, one tool, and the joiner;
at least 3.7 times as fast as with ReAct; the first tool starts before the plan ends; and the dependent tools end within
1.05 times their critical path: each starts when it was planned and its inputs are there, then the joiner writes.

Last, the latency model of the thesis (D.1 to D.6) beside the measurements: its predictions for all three ways from
the fastest run of LLMCompiler and from ReAct's own planning times, without the answer.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import NamedTuple, TypeVar

import click
import msgspec

from benchmarks.shared.serving import MODELS, verdict
from intaglio.display.progress import step, track
from intaglio.exporters import export
from intaglio.runtime.agents.loops.agent import Agent
from intaglio.runtime.agents.loops.llm_compiler import LLMCompiler
from intaglio.runtime.agents.loops.react import ReAct
from intaglio.runtime.agents.models.engine_model import EngineModel
from intaglio.runtime.agents.models.model import ModelPiece, ModelRequest
from intaglio.runtime.agents.reports.latency_model import latency_of
from intaglio.runtime.agents.run.events import AnyEvent, ModelBegan, ModelEnded, TaskPlanned, TaskStarted
from intaglio.runtime.agents.tools.tool import Tool
from intaglio.runtime.generation.generate import TextGenerator
from intaglio.validation.reports.report import processor

POSITIONS = 2048
CHATML = (
    "{% for message in messages %}{{ '<|' + message.role + '|>\n' + message.content + '<|endoftext|>\n' }}{% endfor %}"
    "{{ '<|assistant|>\n' }}"
)
PLACES = ("Asia", "Africa", "Europe", "Oceania", "America", "Greenland", "Antarctica", "Iceland")
INDEPENDENT = [f'{number}. search("area of {place}")' for number, place in enumerate(PLACES, 1)]
DEPENDENT = [
    '1. search("area of Asia")',
    '2. search("area of Africa")',
    '3. search("how to compare $1 with $2")',
    '4. search("area of Europe")',
    '5. search("is $3 more than $4")',
    '6. search("sources of $5")',
]
ANSWER = "Answer: Asia is the largest, by 14 million square kilometres."
PLANS = {"independent": INDEPENDENT, "dependent": DEPENDENT}
AGENTS = ("LLMCompiler", "LLMCompiler, whole plans", "ReAct")
OVER_PARTS, OVER_REACT, OVER_PATH = 1.10, 3.7, 1.05
Kind = TypeVar("Kind", bound=AnyEvent)


class Way(msgspec.Struct):
    """One agent and one set of tools."""

    agent: str
    tools: str
    seconds: float
    first_tool_seconds: float  # when the first tool started
    plan_seconds: float  # when the last call was planned
    first_answer_seconds: float  # when the first request to the model ended
    joiner_seconds: float  # of the last request
    parts_seconds: float  # the reference for the whole: see `parts`
    ratio: float  # the whole over its parts
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


class Prediction(msgspec.Struct):
    """Predictions of the latency model for one set of tools, and measurements, in the order of `AGENTS`."""

    tools: str
    predicted: list[float]  # seconds: D.3, D.2, D.1
    measured: list[float]
    speedup: float  # D.4
    bounds: tuple[float, float]  # D.6 and D.5: planning alone, tools alone


class Result(msgspec.Struct):
    """All that was measured."""

    processor: str
    tool_seconds: float
    rounds: int
    ways: list[Way]
    predictions: list[Prediction]
    over_react: float  # times as fast as ReAct
    over_waiting: float  # times as fast as LLMCompiler without streaming
    verdicts: list[str]


class Writes:
    """A model on an engine that writes given texts, one for each request, and then from the first one again."""

    constrained = True

    def __init__(self, engine: EngineModel, grammars: Sequence[str]):
        self.name = engine.name
        self._engine, self._grammars, self._count = engine, grammars, 0

    def stream(self, request: ModelRequest) -> AbstractAsyncContextManager[AsyncIterator[ModelPiece]]:
        """See `Model`."""
        grammar = self._grammars[self._count % len(self._grammars)]
        self._count += 1
        return self._engine.stream(replace(request, grammar=grammar))


def grammars(generator: TextGenerator, texts: Sequence[str]) -> list[str]:
    """A grammar for each text that allows its tokens alone."""
    ids = [generator.tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
    return [f"start: {' '.join(f'<[{each}]>' for each in tokens)}" for tokens in ids]


def tool(seconds: float) -> Tool:
    """A search that takes this long."""

    async def search(query: str) -> str:
        await asyncio.sleep(seconds)
        return f"{len(query)} million square kilometres"

    schema = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
    return Tool("search", "Find a passage in an encyclopedia.", schema, search)


def agent_of(name: str, engine: EngineModel, generator: TextGenerator, calls: Sequence[str], tool: Tool) -> Agent:
    """An agent whose model writes `calls` and the answer."""
    given = {tool.name: tool}
    if name == "ReAct":
        return ReAct(Writes(engine, grammars(generator, [*calls, ANSWER])), given)
    plan = "\n".join([*calls, f"{len(calls) + 1}. join()"])
    model = Writes(engine, grammars(generator, [plan, ANSWER]))
    return LLMCompiler(model, given, streaming=name == "LLMCompiler")


class Run(NamedTuple):
    """One run of a way."""

    way: Way
    events: Sequence[AnyEvent]


async def measured(agent: Agent, name: str, tools: str, seconds: float, number: int) -> Run:
    """One run."""
    events: list[AnyEvent] = []
    result = await agent.run(f"{number}: which is the largest, and by how much?", events.append)
    count = len(PLANS[tools])
    assert result.complete and result.answer == ANSWER.removeprefix("Answer: "), result.answer
    assert [each.status for each in result.observations.values()] == ["done"] * count
    joiner = of(events, ModelEnded)[-1].seconds - of(events, ModelBegan)[-1].seconds
    expected = parts(of(events, TaskPlanned), seconds) + joiner
    way = Way(
        name,
        tools,
        result.seconds,
        min(each.seconds for each in of(events, TaskStarted)),
        max(each.seconds for each in of(events, TaskPlanned)),
        of(events, ModelEnded)[0].seconds,
        joiner,
        expected,
        result.seconds / expected,
        result.usage.prompt,
        result.usage.cached,
        result.usage.completion,
    )
    return Run(way, events)


def of(events: Sequence[AnyEvent], kind: type[Kind]) -> list[Kind]:
    """The events of one kind."""
    return [each for each in events if isinstance(each, kind)]


def parts(planned: Sequence[TaskPlanned], seconds: float) -> float:
    """When the last tool ends if each starts once it is planned and its inputs are there.

    For independent tools that is the planner's time to the last call and one tool.
    """
    ends: dict[int, float] = {}
    for task in planned:
        ends[task.number] = max(task.seconds, *(ends[each] for each in task.needs), 0.0) + seconds
    return max(ends.values())


def fastest(runs: Sequence[Run]) -> Run:
    """The fastest run of one way, with the median of the ratios."""
    best = min(runs, key=lambda each: each.way.seconds)
    return Run(msgspec.structs.replace(best.way, ratio=median(each.way.ratio for each in runs)), best.events)


def prediction(tools: str, runs: Mapping[tuple[str, str], Run]) -> Prediction:
    """Compare the latency model with the fastest runs of one set of tools."""
    streamed, whole, react = (latency_of(runs[name, tools].events) for name in AGENTS)
    model = latency_of(runs[AGENTS[0], tools].events, [call.plan_seconds for call in react.calls])
    assert model.speedup is not None and model.min_speedup is not None and model.max_speedup is not None
    return Prediction(
        tools,
        [model.predicted.streaming, model.predicted.llmcompiler, model.predicted.react],
        [streamed.measured, whole.measured, react.measured],
        model.speedup,
        (model.min_speedup, model.max_speedup),
    )


async def rounds_of(path: Path, seconds: float, rounds: int, threads: int) -> dict[tuple[str, str], Run]:
    """Measure every way in turns; return the fastest run of each."""
    runs: dict[tuple[str, str], list[Run]] = {}
    async with AsyncExitStack() as stack:
        agents: dict[tuple[str, str], Agent] = {}
        for name in AGENTS:
            generator = stack.enter_context(TextGenerator(path, threads=threads))
            engine = await stack.enter_async_context(EngineModel(generator))
            for tools, calls in PLANS.items():
                agents[name, tools] = agent_of(name, engine, generator, calls, tool(seconds))
        for number in track(range(rounds + 1), "rounds"):
            for (name, tools), agent in agents.items():
                run = await measured(agent, name, tools, seconds, number)
                if number:
                    runs.setdefault((name, tools), []).append(run)
    return {key: fastest(each) for key, each in runs.items()}


def bundle(folder: Path) -> Path:
    """Export the large language model of this repository with random weights, more positions, and a chat template."""
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    checkpoint = folder / "checkpoint"
    config = AutoConfig.from_pretrained(MODELS / "large", n_positions=POSITIONS)
    AutoModelForCausalLM.from_config(config).save_pretrained(checkpoint)
    shutil.copy(MODELS / "large" / "tokenizer.json", checkpoint)
    (checkpoint / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": "<|endoftext|>", "chat_template": CHATML})
    )
    with step("exporting"):
        export(str(checkpoint), folder / "bundle", check=False)
    return folder / "bundle"


def judged(ways: Sequence[Way]) -> tuple[float, float, list[str]]:
    """Times as fast as ReAct and as without streaming, and a line for each goal."""
    found = {(each.agent, each.tools): each for each in ways}
    ours, whole, react = (found[name, "independent"] for name in AGENTS)
    over_react, over_waiting = react.seconds / ours.seconds, whole.seconds / ours.seconds
    early = ours.first_tool_seconds / ours.first_answer_seconds
    path = found["LLMCompiler", "dependent"].ratio
    lines = [
        verdict("independent tools, time over its parts", ours.ratio, OVER_PARTS, at_least=False),
        verdict("independent tools, times as fast as ReAct", over_react, OVER_REACT),
        verdict("first tool, its start over the end of the plan", early, 1.0, at_least=False),
        verdict("dependent tools, time over the critical path", path, OVER_PATH, at_least=False),
    ]
    return over_react, over_waiting, lines


@click.command(help=(__doc__ or "").split("\n\n")[0])
@click.option("--tool-seconds", default=0.2, show_default=True, help="Time of a tool.")
@click.option("--rounds", default=7, show_default=True, help="Runs of each.")
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True, help="Processor threads.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on one line.")
def main(tool_seconds: float, rounds: int, threads: int, as_json: bool) -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as folder:
        runs = asyncio.run(rounds_of(bundle(Path(folder)), tool_seconds, rounds, threads))
    ways = [run.way for run in runs.values()]
    predictions = [prediction(tools, runs) for tools in PLANS]
    over_react, over_waiting, lines = judged(ways)
    result = Result(processor(), tool_seconds, rounds, ways, predictions, over_react, over_waiting, lines)
    print(msgspec.json.encode(result).decode() if as_json else table(result))


def table(result: Result) -> str:
    """For people."""
    return "\n".join(
        [
            f"{result.processor}; tools of {1e3 * result.tool_seconds:.0f} ms, the fastest of {result.rounds} runs",
            *(
                f"{each.tools:11} {each.agent:24} {each.seconds:.3f} s: first tool at {each.first_tool_seconds:.3f}, "
                f"last call at {each.plan_seconds:.3f}, joiner {each.joiner_seconds:.3f}; parts "
                f"{each.parts_seconds:.3f}, ratio {each.ratio:.3f}; {each.prompt_tokens} tokens of prompts, "
                f"{each.cached_tokens} cached, {each.completion_tokens} written"
                for each in result.ways
            ),
            *(line for each in result.predictions for line in predicted(each)),
            f"streaming: {result.over_waiting:.3f} times as fast as whole plans",
            *result.verdicts,
        ]
    )


def predicted(prediction: Prediction) -> list[str]:
    """The lines of a prediction."""
    low, high = sorted(prediction.bounds)
    equations = [*zip(AGENTS, ("D.3", "D.2", "D.1"), prediction.predicted, prediction.measured, strict=True)]
    return [
        *(
            f"{prediction.tools:11} {agent:24} predicted ({equation}) {expected:.3f} s, measured {found:.3f} s"
            for agent, equation, expected, found in equations
        ),
        f"{prediction.tools:11} speed-up over ReAct {prediction.speedup:.2f} (D.4), between {low:.2f} and "
        f"{high:.2f} (D.5 and D.6)",
    ]


if __name__ == "__main__":
    main()
