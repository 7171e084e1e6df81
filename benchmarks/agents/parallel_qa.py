"""How do LLMCompiler, ReAct and function calling compare on questions whose calls can run in parallel?

    python -m benchmarks.agents.parallel_qa [--bundle BUNDLE] [--questions N] [--tool-ms MS] [--json]

The questions come from examples/planner/test.jsonl, in the manner of ParallelQA (thesis, section 6.4 and appendix
D.6), about facts that the model has not seen; the model is the one of examples/planner/model, which was trained on all
three forms, and the tools are `search` over its facts and `calculate`. An answer is right if it is a number within
10 %, or else the same words.

For each way: the share of right answers, seconds, tokens read and written, requests to the model, and the speed-up over
ReAct (thesis, tables 6.1 and 6.2; D.1 for streaming), then the seconds by the number of parallel searches (figure D.1).
Function calling in one round gets no further calls after the first results, and so no arithmetic. Every way has an
engine of its own, with the same settings, so that none finds the prompts of another in its cache.

A tool answers within a millisecond here, one on the web does not: `--tool-ms` adds a delay to each call (the thesis'
searches took 610 ms). Last, the share of valid plans with the grammar of plans and without it, as the model is most
sure of them, and sampled at a temperature, as a less trained model would write.

The goals: LLMCompiler answers 90 % right, and all plans are valid with the grammar.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import msgspec

sys.path.append(str(Path(__file__).parents[2] / "examples"))

from planner.scoring import is_right
from planner.tools import TOOLS
from planner.unseen import UnseenQuestion, read_unseen

from benchmarks.shared.serving import verdict
from intaglio.display.progress import step
from intaglio.exporters import export
from intaglio.runtime.agents.loops.agent import Agent, AgentLimits, AgentResult
from intaglio.runtime.agents.loops.function_calling import FunctionCalling
from intaglio.runtime.agents.loops.joiner import read_decision
from intaglio.runtime.agents.loops.llm_compiler import LLMCompiler
from intaglio.runtime.agents.loops.react import ReAct
from intaglio.runtime.agents.models.model import Model, ModelPiece, ModelRequest
from intaglio.runtime.agents.models.open_model import open_model
from intaglio.runtime.agents.plan.parser import PlanParser
from intaglio.runtime.agents.plan.plan import PlanError
from intaglio.runtime.agents.tools.tool import Tool
from intaglio.validation.reports.report import processor

MODEL = Path(__file__).parents[2] / "examples" / "planner" / "model"
RIGHT, VALID = 0.9, 1.0  # goals
WARM_UP = 2  # questions before those that are measured: the first ones compile grammars
REACT = "ReAct"
Tools = Mapping[str, Tool]
# The longest plan has 150 tokens, the longest string 50 characters; a small model may repeat itself without end.
LIMITS = AgentLimits(max_request_tokens=320, max_string_characters=80)
WAYS: dict[str, Callable[[Model, Tools], Agent]] = {
    REACT: lambda model, tools: ReAct(model, tools, LIMITS),
    "function calling": lambda model, tools: FunctionCalling(model, tools, LIMITS),
    "function calling, one round": lambda model, tools: FunctionCalling(model, tools, LIMITS, rounds=1),
    "LLMCompiler, not streamed": lambda model, tools: LLMCompiler(model, tools, LIMITS, streaming=False),
    "LLMCompiler": lambda model, tools: LLMCompiler(model, tools, LIMITS),
}


class Way(msgspec.Struct):
    """One way over all questions; means of a question."""

    way: str
    right: float  # share of the questions
    seconds: float
    speed_up: float  # ReAct's seconds over these
    prompt_tokens: float
    cached_tokens: float  # of those
    completion_tokens: float
    requests: float
    seconds_by_branches: dict[int, float]


class Plans(msgspec.Struct):
    """The first plans for all questions."""

    grammar: bool
    temperature: float
    valid: float  # share


class Result(msgspec.Struct):
    """All that was measured."""

    processor: str
    questions: int
    tool_ms: float
    ways: list[Way]
    plans: list[Plans]
    verdicts: list[str]


@dataclass(frozen=True)
class Sampled:
    """A model whose requests are sampled at a temperature."""

    model: Model
    temperature: float
    seed: int = 0

    @property
    def name(self) -> str:
        """See `Model`."""
        return self.model.name

    @property
    def constrained(self) -> bool:
        """See `Model`."""
        return self.model.constrained

    def stream(self, request: ModelRequest) -> AbstractAsyncContextManager[AsyncIterator[ModelPiece]]:
        """See `Model`."""
        return self.model.stream(replace(request, temperature=self.temperature, seed=self.seed))


def delayed(tools: Sequence[Tool], milliseconds: float) -> dict[str, Tool]:
    """Return the tools by name, each call of which takes so much longer."""
    return {tool.name: replace(tool, function=_later(tool, milliseconds)) if milliseconds else tool for tool in tools}


def _later(tool: Tool, milliseconds: float) -> Callable[..., Any]:
    async def call(**arguments: Any) -> Any:
        await asyncio.sleep(milliseconds / 1e3)
        return tool.function(**arguments)

    return call


async def answered(
    bundle: Path, way: Callable[[Model, Tools], Agent], tools: Tools, questions: Sequence[UnseenQuestion]
) -> list[AgentResult]:
    """Answer the questions one after the other, with an engine of its own."""
    async with open_model(bundle) as model:
        agent = way(model, tools)
        for question in questions[:WARM_UP]:
            await agent.run(question.question)
        return [await agent.run(each.question) for each in questions]


def measured(
    name: str, results: Sequence[AgentResult], questions: Sequence[UnseenQuestion], react: Sequence[AgentResult]
) -> Way:
    """Average the results of one way."""
    by_branches: dict[int, list[float]] = defaultdict(list)
    for result, question in zip(results, questions, strict=True):
        by_branches[question.branches].append(result.seconds)
    mean = statistics.fmean
    seconds = mean(each.seconds for each in results)
    return Way(
        way=name,
        right=mean(is_right(final(each), asked.answer) for each, asked in zip(results, questions, strict=True)),
        seconds=seconds,
        speed_up=mean(each.seconds for each in react) / seconds,
        prompt_tokens=mean(each.usage.prompt for each in results),
        cached_tokens=mean(each.usage.cached for each in results),
        completion_tokens=mean(each.usage.completion for each in results),
        requests=mean(each.usage.calls for each in results),
        seconds_by_branches={count: mean(by_branches[count]) for count in sorted(by_branches)},
    )


def final(result: AgentResult) -> str:
    """Return what follows "Answer: ", which function calling leaves in its text."""
    decision = read_decision(result.answer)
    return result.answer if decision is None else decision.answer or ""


async def planned(bundle: Path, tools: Tools, questions: Sequence[UnseenQuestion], temperature: float) -> list[Plans]:
    """Return the share of valid plans with the grammar, and without it."""
    found = []
    async with open_model(bundle) as model:
        for grammar in (True, False):
            valid = 0
            for seed, question in enumerate(questions):
                sampled = Sampled(model, temperature, seed)
                agent = LLMCompiler(sampled, tools, LIMITS, constrained=grammar)
                result = await agent.run(question.question)
                valid += is_valid(result.plans[0], tools)
            found.append(Plans(grammar, temperature, valid / len(questions)))
    return found


def is_valid(plan: str, tools: Tools) -> bool:
    """Whether a plan can be read to its end."""
    parser = PlanParser(tools)
    try:
        parser.push(plan)
        parser.finish()
    except PlanError:
        return False
    return True


@click.command(help=(__doc__ or "").split("\n\n")[0])
@click.option("--bundle", type=click.Path(exists=True, path_type=Path), help="Of the model; default: exports it.")
@click.option("--questions", "count", type=click.IntRange(min=1), help="Measure only the first ones.")
@click.option("--tool-ms", type=click.FloatRange(min=0), default=0.0, show_default=True, help="Delay of each call.")
@click.option("--temperature", type=click.FloatRange(min=0), default=1.0, show_default=True, help="Of sampled plans.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on one line.")
def main(bundle: Path | None, count: int | None, tool_ms: float, temperature: float, as_json: bool) -> None:
    """Measure and print."""
    questions = read_unseen()[:count]
    tools, fast = delayed(TOOLS, tool_ms), delayed(TOOLS, 0)
    with tempfile.TemporaryDirectory() as folder:
        if bundle is None:
            bundle = Path(folder, "bundle")
            with step("export"):
                export(str(MODEL), bundle)
        results = {}
        for name, way in WAYS.items():
            with step(name):
                results[name] = asyncio.run(answered(bundle, way, tools, questions))
        with step("plans"):
            plans = [
                each for warmth in (0.0, temperature) for each in asyncio.run(planned(bundle, fast, questions, warmth))
            ]
    ways = [measured(name, each, questions, results[REACT]) for name, each in results.items()]
    verdicts = [
        verdict("LLMCompiler, share of right answers", ways[-1].right, RIGHT),
        verdict("valid plans with the grammar", min(each.valid for each in plans if each.grammar), VALID),
    ]
    result = Result(processor(), len(questions), tool_ms, ways, plans, verdicts)
    print(msgspec.json.encode(result).decode() if as_json else table(result))


def table(result: Result) -> str:
    """For people."""
    return "\n".join(
        [
            f"{result.processor}; {result.questions} questions; {result.tool_ms:g} ms added to each call of a tool",
            "",
            f"{'way':28} {'right':>6} {'seconds':>8} {'speed-up':>8} {'tokens in':>9} {'cached':>7} {'out':>6} "
            f"{'requests':>8}   seconds by branches",
            *(
                f"{each.way:28} {each.right:6.1%} {each.seconds:8.3f} {each.speed_up:7.2f}x {each.prompt_tokens:9.0f} "
                f"{each.cached_tokens:7.0f} {each.completion_tokens:6.0f} {each.requests:8.1f}   "
                + ", ".join(f"{count}: {seconds:.3f}" for count, seconds in each.seconds_by_branches.items())
                for each in result.ways
            ),
            "",
            *(
                f"valid plans at temperature {each.temperature:g} {'with' if each.grammar else 'without'} the grammar: "
                f"{each.valid:.1%}"
                for each in result.plans
            ),
            *result.verdicts,
        ]
    )


if __name__ == "__main__":
    main()
