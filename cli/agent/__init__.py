"""`intaglio agent`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from intaglio.cli.options.choices import BUNDLE_OR_NAME, PATH, OneOf
from intaglio.cli.options.generation import drafting_options
from intaglio.cli.options.runtime import cache_bits_option, target_option, threads_option
from intaglio.cli.options.text_lines import standard_input
from intaglio.cli.printing.generated_text import show
from intaglio.cli.printing.results import force_option, json_option, notice, number_of, print_json, print_table
from intaglio.cli.running.command import OUTPUT, section, verb
from intaglio.display.verbosity import is_quiet
from intaglio.errors import UsageError

if TYPE_CHECKING:
    from intaglio.runtime.agents.reports.latency_model import Latency
    from intaglio.runtime.agents.reports.run_report import AgentRun
    from intaglio.runtime.agents.run.events import AnyEvent

EPILOG = """\b
Examples:
  intaglio agent "What is 15% of 2.5 million, plus 12?" --tools calculate --model qwen3
  intaglio agent "Which of the two cities is larger?" --tools search:notes --tools tools.py --model qwen3
  intaglio agent "Compare the two pages." --tools pages --model http://127.0.0.1:8000 --model-name chat --grammar
  intaglio agent "How many open tickets?" --tools "mcp:npx -y some-server" --model qwen3 --planner react
  intaglio agent - --tools calculate --model qwen3 --draft small-qwen3 --json < question.txt
  intaglio agent "Is 91 prime?" --tools calculate --model qwen3 --latency --timeline run.html --trace run.jsonl
"""
NO_QUESTION = "no question. Give it as an argument, or pipe it in."


@verb("agent", epilog=EPILOG)
@click.argument("question")
@click.option(
    "--tools",
    multiple=True,
    required=True,
    metavar="SOURCE",
    help="calculate, search:FOLDER, pages, pages:FOLDER, FILE.py (runs it), the URL of an MCP server, or "
    "mcp:COMMAND, which starts one. Can be repeated.",
)
@click.option(
    "--model",
    required=True,
    metavar="BUNDLE|URL",
    type=BUNDLE_OR_NAME,
    help="A decoder, or a server with OpenAI's API.",
)
@click.option("--model-name", help="Name of the model on the server.  [default: its only one]")
@click.option(
    "--planner",
    type=OneOf(["llmcompiler", "react", "function-calling"]),
    default="llmcompiler",
    help="llmcompiler: a plan of calls that run in parallel; react: one call at a time; function-calling: in "
    "the model's own tool-call format.",
)
@section("Limits")
@click.option("--max-replans", default=3, help="Maximum replans after the first plan.")
@click.option("--max-model-calls", default=16, help="Maximum requests to the model.")
@click.option("--max-calls", default=1000, help="Maximum tool calls, in all plans.")
@click.option("--max-tokens", default=1 << 16, help="Maximum generated tokens, in total.")
@click.option("--max-request-tokens", default=1024, help="Maximum generated tokens per request.")
@click.option("--max-result-characters", default=4000, help="Maximum characters of a tool's result in a prompt.")
@click.option("--max-string-characters", default=2000, help="Maximum characters of a string in a plan.")
@click.option("--max-seconds", default=300.0, help="Time limit of the whole run, in seconds.")
@click.option("--tool-timeout", default=60.0, help="Timeout of a tool call in seconds, unless its tool has its own.")
@click.option("--parallel", default=64, help="Maximum concurrent tool calls.")
@section("Plans")
@click.option("--examples", type=PATH, help="File with example questions and plans for the planner.")
@click.option(
    "--grammar/--no-grammar",
    default=None,
    help="Constrain plans to valid calls.  [default: on for a bundle; few servers support it]",
)
@click.option("--streaming/--no-streaming", default=True, help="Start tool calls while the plan is being generated.")
@drafting_options
@target_option()
@threads_option()
@cache_bits_option()
@section(OUTPUT)
@click.option("--latency", is_flag=True, help="Compare the run with the latency model of LLMCompiler and ReAct.")
@click.option("--timeline", type=PATH, help="Draw the run as an HTML page.")
@click.option("--trace", type=PATH, help="Write the events of the run as JSON lines.")
@force_option
@json_option
def agent_command(
    question: str,
    latency: bool,
    timeline: Path | None,
    trace: Path | None,
    force: bool,
    as_json: bool,
    **options: Any,
) -> int:
    """Answer QUESTION with tools and a model; - reads the question from standard input.

    The model plans calls of tools, which run in parallel as soon as their inputs are there, and answers from their
    results. The answer goes to standard output, the progress to standard error: a line for each request and each call
    when it has ended. Exit code 1 if there is no complete answer: a limit was reached, or the model failed.
    OPENAI_API_KEY is the key of a server.
    """
    from intaglio.cli.agent.reserved_output import reserved_output
    from intaglio.cli.running.event_loop import run
    from intaglio.files.atomic import check_output_file

    for path, option in ((timeline, "--timeline"), (trace, "--trace")):
        if path is not None:
            check_output_file(path, force, option)
    asked = (standard_input(NO_QUESTION) if question == "-" else question).strip()
    if not asked:
        raise UsageError(NO_QUESTION)
    if not asked.isascii() and any("\ud800" <= sign <= "\udfff" for sign in asked):
        raise UsageError("the question is not Unicode text. Write it in UTF-8.")
    with reserved_output() as output:
        result, events = run(_answer(asked, as_json, options))
        output.release()
        _write(events, asked, trace, timeline)
        if as_json:
            print_json(result)
        else:
            _print(result, latency)
    return 0 if result.complete else 1


def _write(events: Sequence[AnyEvent], asked: str, trace: Path | None, timeline: Path | None) -> None:
    """Write the files of a run."""
    from intaglio.files.atomic import atomic_write

    if trace is not None:
        from intaglio.runtime.agents.reports.trace import trace_bytes

        atomic_write(trace, trace_bytes(events))
    if timeline is not None:
        from intaglio.runtime.agents.reports.timeline import timeline as draw

        atomic_write(timeline, draw(events, asked).encode("utf-8", "replace"))


async def _answer(question: str, as_json: bool, options: dict[str, Any]) -> tuple[AgentRun, list[AnyEvent]]:
    """Run the agent, with its progress on standard error: with --json, on a terminal only."""
    from intaglio.cli.agent.progress import AgentProgress
    from intaglio.display.progress import spinner
    from intaglio.runtime.agents.answer import open_agent
    from intaglio.runtime.agents.reports.run_report import run_report

    events: list[AnyEvent] = []
    async with AsyncExitStack() as stack:
        with spinner("opening the tools and the model"):
            agent = await stack.enter_async_context(open_agent(**options))
        quiet = is_quiet() or (as_json and not sys.stderr.isatty())
        with nullcontext() if quiet else AgentProgress() as progress:

            def observe(event: AnyEvent) -> None:
                events.append(event)
                if progress is not None:
                    progress(event)

            await agent.run(question, observe)
    return run_report(question, options["planner"], events), events


def _print(result: AgentRun, latency: bool) -> None:
    show(result.answer)
    click.echo()
    used = result.usage
    notice(
        f"{result.seconds:.2f} s: {number_of(len(result.tasks), 'calls')}, {number_of(used.requests, 'requests')}; "
        f"{used.prompt_tokens:,} tokens "
        f"read ({used.cached_tokens:,} cached), {used.completion_tokens:,} written."
    )
    if latency:
        click.echo()
        _print_latency(result.planner, result.latency)


def _print_latency(planner: str, found: Latency) -> None:
    """Print the latency model beside the run; see `latency_of`."""
    predicted, first = found.predicted, found.predicted.react

    def row(name: str, seconds: float) -> tuple[object, ...]:
        total = seconds + found.answer_seconds
        return name, f"{seconds:.3f}", f"{total:.3f}", f"{first / seconds:.2f}×" if seconds > 0 else None

    rows = [
        row("ReAct (D.1)", predicted.react),
        row("LLMCompiler (D.2)", predicted.llmcompiler),
        row("LLMCompiler, streaming (D.3)", predicted.streaming),
        row(f"measured, {planner}", found.measured),
    ]
    columns = ["seconds of", "plans and tools", "with the answer", "speed-up (D.4)"]
    print_table(f"Latency of {number_of(len(found.calls), 'calls')}", columns, rows)
    if found.max_speedup is not None and found.min_speedup is not None:
        click.echo(f"Bounds of the speed-up: {found.min_speedup:.2f} (D.6) to {found.max_speedup:.2f} (D.5).")
