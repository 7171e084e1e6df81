"""The verb `agent`: open tools and a model, and answer a question with them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Unpack, cast

from intaglio.bundle.bundle import Bundle
from intaglio.processes import async_run
from intaglio.runtime.agents.loops.agent import Agent, AgentLimits
from intaglio.runtime.agents.loops.examples import read_examples
from intaglio.runtime.agents.loops.planners import Planner, agent_of
from intaglio.runtime.agents.models.open_model import is_url, open_model
from intaglio.runtime.agents.open_tools import open_tools
from intaglio.runtime.agents.reports.run_report import AgentRun, run_report
from intaglio.runtime.agents.run.events import AnyEvent, Observer
from intaglio.runtime.generation.generator_options import DecodingOptions, GeneratorOptions, StrategyOptions
from intaglio.targets import DEFAULT

LIMITS = AgentLimits()


class AgentOptions(DecodingOptions, total=False):
    """The options of `open_agent` as types, for the functions that pass them on."""

    planner: Planner
    model_name: str | None
    grammar: bool | None
    streaming: bool
    examples: str | Path | None
    max_replans: int
    max_model_calls: int
    max_calls: int
    max_tokens: int
    max_request_tokens: int
    max_result_characters: int
    max_string_characters: int
    max_seconds: float
    tool_timeout: float
    parallel: int


def agent(question: str, tools: Sequence[str], model: str | Path, **options: Unpack[AgentOptions]) -> AgentRun:
    """Answer `question` with the tools of `tools` and the model `model`; the options: see `open_agent`.

    In an event loop, use `answer`. Raises `UsageError`, `ToolError`, `ModelError`, `BundleError` for tools and models
    that cannot be opened. Later failures are in the result: `complete` is False, and the answer states the reason.
    """
    return async_run.run(answer(question, tools, model, **options))


async def answer(
    question: str,
    tools: Sequence[str],
    model: str | Path,
    *,
    observer: Observer | None = None,
    **options: Unpack[AgentOptions],
) -> AgentRun:
    """Do what `agent` does, in the running event loop; `observer` gets each event as it happens.

    Cancelling it ends the run, its calls and its servers.
    """
    events: list[AnyEvent] = []

    def observe(event: AnyEvent) -> None:
        events.append(event)
        if observer is not None:
            observer(event)

    async with open_agent(tools, model, **options) as opened:
        await opened.run(question, observe)
    return run_report(question, options.get("planner", "llmcompiler"), events)


@asynccontextmanager
async def open_agent(
    tools: Sequence[str],
    model: str | Path,
    *,
    planner: Planner = "llmcompiler",
    model_name: str | None = None,
    grammar: bool | None = None,
    streaming: bool = True,
    examples: str | Path | None = None,
    max_replans: int = LIMITS.max_replans,
    max_model_calls: int = LIMITS.max_model_calls,
    max_calls: int = LIMITS.max_calls,
    max_tokens: int = LIMITS.max_tokens,
    max_request_tokens: int = LIMITS.max_request_tokens,
    max_result_characters: int = LIMITS.max_result_characters,
    max_string_characters: int = LIMITS.max_string_characters,
    max_seconds: float = LIMITS.max_seconds,
    tool_timeout: float = LIMITS.tool_timeout,
    parallel: int = LIMITS.parallel,
    strategy: str | None = None,
    draft: str | Path | Bundle | None = None,
    early_exit: bool = False,
    target: str = DEFAULT,
    threads: int | None = None,
    cache_bits: int | None = None,
    **strategy_options: Unpack[StrategyOptions],
) -> AsyncIterator[Agent]:
    """Open an agent, which answers questions until the context is left.

    `tools`: sources as of `open_tools`. `model`: a bundle, or the URL of a server; `model_name`: which of the server's
    models. `planner`: one of `PLANNERS`. `grammar`: constrain plans and calls to those that can be run; by default with
    a bundle, as few servers can. `streaming`: start calls while the plan is written. `examples`: a file as of
    `read_examples`. `strategy`, `draft`, `early_exit`, `target`, `threads`, `cache_bits` and the options of the
    strategy: see `TextGenerator`. The limits: see `AgentLimits`.
    """
    limits = AgentLimits(
        max_replans=max_replans,
        max_model_calls=max_model_calls,
        max_calls=max_calls,
        max_tokens=max_tokens,
        max_request_tokens=max_request_tokens,
        max_result_characters=max_result_characters,
        max_string_characters=max_string_characters,
        max_seconds=max_seconds,
        tool_timeout=tool_timeout,
        parallel=parallel,
    )
    given = {
        "strategy": strategy,
        "draft": draft,
        "early_exit": early_exit,
        "threads": threads,
        "cache_bits": cache_bits,
        **strategy_options,
    }
    opening = cast("GeneratorOptions", given)
    server = is_url(model)
    if not server or target != DEFAULT:
        opening["target"] = target
    async with open_tools(tools, call_seconds=tool_timeout) as opened:
        shown = read_examples(Path(examples), opened, "--examples") if examples is not None else ()
        async with open_model(model, model=model_name, constrained=grammar if server else None, **opening) as writing:
            yield agent_of(planner, writing, opened, limits, shown, streaming, grammar)
