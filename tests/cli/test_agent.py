"""`intaglio agent`: answers, progress, files, exit codes, and output of untrusted tools and models."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from covering import few
from mcp_servers import http_server
from scripted_server import (
    SILENCE,
    STREAM,
    ScriptedServer,
    Step,
    chunk,
    error,
    scripted,
    scripted_in_a_thread,
    status,
    stream,
)
from terminal import on_terminal
from tiny_decoders import CHAT

from intaglio.runtime.agents.answer import agent as answer
from intaglio.runtime.agents.reports.trace import read_trace
from intaglio.runtime.agents.run.events import Ended, TaskStarted

SECONDS = 60  # of any one test's loop
LISTED = status(200, {"object": "list", "data": [{"id": "lm", "object": "model"}]})
PLAN = '1. calculate("6 * 7")\n2. calculate("$1 + 1")\n3. join()\n'
TOOLS = """
import time
from intaglio.runtime.agents.tools.tool import Tool, ToolError

STRING = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}

def hostile(text):
    return "\\x1b]0;owned\\x07\\x1b[2J" + text

def fails(text):
    raise ToolError("no \\x1b[31m luck")

def half(text):
    return "\\ud800"

def slow(text):
    time.sleep(60)

def brief(text):
    time.sleep(0.6)
    return text

ALL = (hostile, fails, half, slow, brief)
HOSTILE, FAILS, HALF, SLOW, BRIEF = (Tool(each.__name__, "A tool.", STRING, each) for each in ALL)
"""


class Run(NamedTuple):
    code: int
    out: str
    err: str


def wrote(*texts: str) -> list[list[Step]]:
    """The responses of a model, streamed in two chunks each."""
    return [stream(chunk(text[:9]), chunk(text[9:], "stop")) for text in texts]


async def started(*arguments: object, **options: Any) -> asyncio.subprocess.Process:
    command = [sys.executable, "-P", "-m", "intaglio", *map(str, arguments)]
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=pipe, **options)


Agent = Callable[..., tuple[Run, ScriptedServer]]


@pytest.fixture(scope="module")
def model() -> Iterator[ScriptedServer]:
    with scripted_in_a_thread() as running:
        yield running


@pytest.fixture
def agent(model: ScriptedServer, intaglio: Callable[..., tuple[int, str, str]]) -> Agent:
    """A function that runs the command in this process with a model that gives these responses."""

    def run(
        answers: Sequence[Sequence[Step]], *options: object, question: str = "How much?", stdin: str = ""
    ) -> tuple[Run, ScriptedServer]:
        model.answers[:] = [LISTED, *answers]
        model.bodies.clear()
        return Run(*intaglio("agent", question, "--model", model.url, *options, stdin=stdin)), model

    return run


def test_stdout_has_only_the_answer_and_stderr_the_progress(agent: Agent) -> None:
    run, server = agent(wrote(PLAN, "Thought: easy\nAnswer: It is 43."), "--tools", "calculate")
    assert (run.code, run.out) == (0, "It is 43.\n")
    lines = run.err.splitlines()
    assert len(lines) == 5
    states = {line.split(" s  ", 1)[1].split(maxsplit=1)[0]: line for line in lines[:4]}
    assert set(states) == {"planner", "done", "joiner"}
    assert any('done     1. calculate("6 * 7") → 42' in line for line in lines)
    assert any('done     2. calculate("$1 + 1") → 43' in line for line in lines)
    assert " 2 calls, 2 requests;" in lines[4]
    assert server.bodies[1]["messages"][1]["content"] == "Question: How much?"


def test_json_has_the_answer_the_tasks_the_usage_and_the_latency(agent: Agent) -> None:
    run, _ = agent(wrote(PLAN, "Answer: 43"), "--tools", "calculate", "--json")
    assert (run.code, run.err, run.out.count("\n")) == (0, "", 1)
    found = json.loads(run.out)
    assert found.keys() >= {"answer", "complete", "seconds", "planner", "usage", "tasks", "latency"}
    assert (found["answer"], found["complete"], found["planner"]) == ("43", True, "llmcompiler")
    assert found["usage"]["requests"] == 2
    assert [(each["call"], each["status"], each["result"], each["needs"]) for each in found["tasks"]] == [
        ('1. calculate("6 * 7")', "done", "42", []),
        ('2. calculate("$1 + 1")', "done", "43", [1]),
    ]
    latency = found["latency"]
    assert latency["predicted"].keys() == {"react", "llmcompiler", "streaming"}
    assert latency["measured"] + latency["answer_seconds"] == pytest.approx(found["seconds"])


def test_first_plan_is_not_reported_as_a_replan(tmp_path: Path, agent: Agent) -> None:
    """A joiner may answer after an invalid plan, from the calls before the error."""
    broken, options = '1. calculate("6 * 7")\n2. nope()\n', ("--tools", "calculate")
    run, _ = agent(wrote(broken, "Answer: 42"), *options, "--timeline", tmp_path / "run.html")
    assert " s  invalid  line 2: no tool is named 'nope'" in run.err and " replan " not in run.err
    page = (tmp_path / "run.html").read_text()
    assert "further plans</th><td>0<" in page and "invalid plans</th><td>1<" in page
    run, _ = agent(wrote(broken, "Replan: no such tool", '2. calculate("$1")\n3. join()', "Answer: 42"), *options)
    assert " s  invalid  line 2: " in run.err and " s  replan   no such tool" in run.err
    for answers, replans in (
        (wrote(broken, "Answer: 42"), []),
        (wrote(broken, "Replan: so", "2. join()", "Answer: 42"), ["so"]),
    ):
        found = json.loads(agent(answers, *options, "--json")[0].out)
        assert found["replans"] == replans and found["plan_errors"][0].startswith("line 2: no tool is named 'nope'")


@pytest.mark.proof
def test_tools_of_an_http_server_are_called(tmp_path: Path, agent: Agent) -> None:
    plan = '1. calculate("6 * 7")\n2. echo($1)\n3. fail()\n4. join()'
    with http_server(tmp_path) as (url, _):
        run, _ = agent(wrote(plan, "Answer: It is 42."), "--tools", url, "--json")
    found = json.loads(run.out)
    assert (run.code, found["answer"], found["complete"]) == (0, "It is 42.", True)
    done, echoed, failed = found["tasks"]
    assert [(each["tool"], each["status"], each["result"]) for each in (done, echoed)] == [
        ("calculate", "done", "42"),
        ("echo", "done", "42"),
    ]
    assert failed["status"] == "failed" and "the disk is full" in failed["result"]


def test_function_returns_the_answer_of_the_command(model: ScriptedServer) -> None:
    model.answers[:] = wrote(PLAN, "Answer: 43")
    found = answer("How much?", ["calculate"], model.url, model_name="lm", max_replans=0)
    assert (found.answer, found.complete, found.planner) == ("43", True, "llmcompiler")
    assert [task.result for task in found.tasks] == ["42", "43"]


def test_question_is_read_from_standard_input(agent: Agent) -> None:
    options = ("--tools", "calculate")
    run, server = agent(wrote(PLAN, "Answer: 43"), *options, question="-", stdin="Was it\nmuch?\n")
    assert run.code == 0
    assert server.bodies[1]["messages"][1]["content"] == "Question: Was it\nmuch?"
    run, _ = agent([], *options, question="-", stdin=" \n")
    assert (run.code, run.out, run.err.count("\n")) == (2, "", 1)
    assert run.err.startswith("intaglio: no question.")


@pytest.mark.parametrize(
    ("answers", "options", "message"),
    [
        (
            wrote(PLAN, "Replan: more"),
            ["--max-replans", 0],
            "No answer: the run reached its limit of 0 replans. 2 of 2",
        ),
        (wrote(PLAN), ["--max-model-calls", 1], "No answer: the run reached its limit of 1 requests"),
        (
            wrote(PLAN, "Replan: more"),
            ["--max-calls", 1],
            "No answer: the run reached its limit of 1 tool calls. 1 of 1",
        ),
        ([[STREAM, chunk("1."), SILENCE]], ["--max-seconds", 0.5], "No answer: the run reached its limit of 0.5 s"),
        ([error(400, "bad")], [], "No answer: "),
    ],
)
def test_incomplete_answer_exits_with_code_1(answers: Any, options: list[object], message: str, agent: Agent) -> None:
    run, _ = agent(answers, "--tools", "calculate", *options)
    assert run.code == 1
    assert run.out.startswith(message)


def test_every_planner_answers(agent: Agent) -> None:
    turns = wrote('1. calculate("6 * 7")', "Answer: It is 42.")
    run, server = agent(turns, "--tools", "calculate", "--planner", "react", "--json")
    assert (json.loads(run.out)["answer"], json.loads(run.out)["planner"]) == ("It is 42.", "react")
    assert "one at a time" in server.bodies[1]["messages"][0]["content"]
    call = {"index": 0, "id": "a", "type": "function"}
    call["function"] = {"name": "calculate", "arguments": '{"expression": "6 * 7"}'}
    turns = [stream(chunk(tool_calls=[call]), chunk(reason="tool_calls")), *wrote("It is 42 again.")]
    run, server = agent(turns, "--tools", "calculate", "--planner", "function-calling", "--json")
    found = json.loads(run.out)
    assert (found["answer"], [each["result"] for each in found["tasks"]]) == ("It is 42 again.", ["42"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--tools", "nonsense"], "tools 'nonsense': expected calculate"),
        ([], "Missing option '--tools'"),
        (["--tools", "calculate", "--draft", "small"], "draft: only for a bundle"),
        (["--tools", "calculate", "--target", "ort-cuda"], "target: only for a bundle"),
        (["--tools", "calculate", "--max-replans", "-1"], "replans -1: expected 0 or more"),
        (["--tools", "calculate", "--parallel", "0"], "parallel 0: expected at least 1"),
        (["--tools", "calculate", "--max-calls", "0"], "tasks 0: expected at least 1"),
        (["--tools", "calculate", "--max-string-characters", "0"], "string characters 0: expected 1 to 100000"),
        (
            ["--tools", "calculate", "--planner", "react", "--no-streaming"],
            "no streaming: only for planner llmcompiler",
        ),
        *(
            (
                ["--tools", "calculate", "--planner", "function-calling", given],
                "grammar: only for planners llmcompiler and react, got 'function-calling'",
            )
            for given in ("--grammar", "--no-grammar")
        ),
        (["--tools", "calculate", "--examples", "/no/file"], "--examples /no/file: No such file"),
        (["--tools", "calculate", "--timeline", "/no/folder/a.html"], "--timeline /no/folder/a.html: its folder"),
        (["--tools", "calculate", "--trace", "{taken}"], "exists already. Add --force"),
    ],
)
def test_usage_error_prints_one_line_and_exits_with_code_2(
    options: list[str], message: str, tmp_path: Path, intaglio: Any
) -> None:
    (tmp_path / "taken").write_text("kept")
    given = (each.format(taken=tmp_path / "taken") for each in options)
    code, out, err = intaglio("agent", "How?", "--model", "http://127.0.0.1:9", "--model-name", "lm", *given)
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith("intaglio: ") and message in line
    assert (tmp_path / "taken").read_text() == "kept"


def test_unreachable_server_prints_one_line_and_exits_with_code_2(intaglio: Any) -> None:
    code, out, err = intaglio("agent", "a", "--tools", "calculate", "--model", "http://127.0.0.1:9")
    assert (code, out, err.count("\n")) == (2, "", 1)


def test_timeline_trace_and_latency_describe_the_run(tmp_path: Path, agent: Agent) -> None:
    files = ("--timeline", tmp_path / "run.html", "--trace", tmp_path / "run.jsonl")
    run, _ = agent(wrote(PLAN, "Answer: 43"), "--tools", "calculate", "--latency", *files)
    assert run.code == 0
    assert "LLMCompiler, streaming (D.3)" in run.out and "measured, llmcompiler" in run.out
    events = list(read_trace(tmp_path / "run.jsonl"))
    assert events[-1] == Ended(seconds=events[-1].seconds, answer="43", complete=True)
    assert [each.arguments for each in events if isinstance(each, TaskStarted)] == [
        {"expression": "6 * 7"},
        {"expression": "42 + 1"},
    ]
    assert "How much?" in (tmp_path / "run.html").read_text()


def test_examples_reach_the_planner_and_are_checked_against_the_tools(tmp_path: Path, agent: Agent) -> None:
    path = tmp_path / "examples.txt"
    path.write_text(f"Question: What is 7 * 6,\nplus 1?\n{PLAN}###\n")
    run, server = agent(wrote(PLAN, "Answer: 43"), "--tools", "calculate", "--examples", path)
    assert run.code == 0
    assert f"Example:\nQuestion: What is 7 * 6,\nplus 1?\n{PLAN.strip()}" in server.bodies[1]["messages"][0]["content"]
    path.write_text('Question: a\n1. join()\n###\nQuestion: b\n1. serch("c")\n2. join()\n')
    run, _ = agent([], "--tools", "calculate", "--examples", path)
    assert run.code == 2
    assert f"--examples {path}, example 2: line 1: " in run.err and "serch" in run.err


def test_terminal_escapes_of_tools_and_models_are_removed(tmp_path: Path, agent: Agent) -> None:
    (tmp_path / "tools.py").write_text(TOOLS)
    plan = '1. hostile("a")\n2. fails("b")\n3. join()\n'
    answers = wrote(plan, "Replan: \x1b[5mmore", plan.replace("1.", "4.").replace("2.", "5.").replace("3.", "6."))
    answers += wrote("Answer: \x1b[31mred\x07 \x9b1m")
    options = ("--tools", str(tmp_path / "tools.py"))

    async def main() -> str:
        async with asyncio.timeout(SECONDS), scripted(LISTED, *answers) as server:
            arguments = ("-m", "intaglio", "agent", "a", "--model", server.url, *options)
            return await asyncio.to_thread(on_terminal, *arguments)

    piped, _ = agent(answers, *options)
    shown = asyncio.run(main())
    assert piped.code == 0
    assert "hostile" in piped.err and "no \ufffd[31m luck" in piped.err
    assert not set(piped.err) & {"\x1b", "\x07", "\x9b"}
    assert shown == "\ufffd[31mred\ufffd \ufffd1m\n"


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_unencodable_text_prints_no_traceback(options: list[str], tmp_path: Path, agent: Agent) -> None:
    (tmp_path / "tools.py").write_text(TOOLS)
    files = ("--trace", tmp_path / "run.jsonl", "--timeline", tmp_path / "run.html")
    answers = wrote('1. half("a")\n2. join()\n', "Answer: \ud800")
    run, _ = agent(answers, "--tools", tmp_path / "tools.py", *files, *options)
    assert run.code in (0, 1)
    assert run.out and "a bug in intaglio" not in run.err + run.out
    assert (tmp_path / "run.jsonl").exists() and (tmp_path / "run.html").exists()


def test_question_that_is_not_utf8_prints_one_line() -> None:
    command = [sys.executable, "-P", "-m", "intaglio", "agent", b"\xff?", "--tools", "calculate", "--model", "/nowhere"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert (found.returncode, found.stdout) == (2, "")
    assert found.stderr == "intaglio: the question is not Unicode text. Write it in UTF-8.\n"


def test_terminal_shows_running_and_waiting_tasks(tmp_path: Path) -> None:
    (tmp_path / "tools.py").write_text(TOOLS)
    plan = '1. brief("a")\n2. hostile("$1")\n3. join()\n'

    async def main() -> str:
        async with asyncio.timeout(SECONDS), scripted(LISTED, *wrote(plan, "Answer: so")) as server:
            options = ("-m", "intaglio", "agent", "a", "--model", server.url, "--tools", tmp_path / "tools.py")
            return await asyncio.to_thread(on_terminal, *options, columns=60, errors=True)

    shown = asyncio.run(main())
    assert re.search(r'0\.\d\d s  runs     1\. brief\("a"\)', shown)
    assert re.search(r"0\.\d\d s  waits    2\. hostile\(\$1\)", shown)
    assert re.search(r'0\.[67]\d s  done     1\. brief\("a"\) → a', shown)
    assert "done     2. hostile($1) → \ufffd]0;owned" in shown
    assert "\x1b]0;" not in shown and "\x07" not in shown
    assert any(line.endswith("so") for line in shown.splitlines()[-3:])  # the following tokens take two lines


def interrupted(number: signal.Signals, tools: Path) -> tuple[Run, int]:
    """Send a signal while a tool runs; return the run and the number of model connections still open."""

    async def main() -> tuple[Run, int]:
        async with asyncio.timeout(SECONDS), scripted(LISTED, [STREAM, chunk('1. slow("a")\n'), SILENCE]) as server:
            trace = tools.parent / "trace.jsonl"
            options = ("--tools", tools, "--model", server.url, "--trace", trace)
            process = await started("agent", "a", *options)
            while not server.bodies[1:]:
                await asyncio.sleep(0.02)
            await asyncio.sleep(0.3)
            process.send_signal(number)
            out, err = await process.communicate()
            assert not trace.exists()
            return Run(process.returncode or 0, out.decode(), err.decode()), server.open

    return asyncio.run(main())


@pytest.mark.parametrize("number", few([signal.SIGINT, signal.SIGTERM], [signal.SIGTERM]))
def test_interrupt_ends_the_run_cleanly_while_a_tool_and_the_model_work(number: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "tools.py").write_text(TOOLS)
    run, connections = interrupted(number, tmp_path / "tools.py")
    assert (run.code, run.out, connections) == (128 + number, "", 0)
    assert run.err.splitlines()[-1] == "intaglio: interrupted. Unfinished output was removed; run the command again."
    assert "Traceback" not in run.err


def test_bundle_generates_only_executable_plans(make_decoder: Callable[..., tuple[Path, Path]], intaglio: Any) -> None:
    """The grammar makes every plan of a random model valid unless --max-request-tokens truncates it."""
    bundle = make_decoder("llama", chat=CHAT, max_position_embeddings=8192)[1]
    limits = ("--max-request-tokens", 400, "--max-replans", 0, "--threads", 1, "--json")
    options = ("agent", "What?", "--tools", "calculate", "--model", bundle, *limits)
    code, out, _ = intaglio(*options)
    found = json.loads(out)
    assert code in (0, 1)  # the answer of a random model may be truncated
    assert found["usage"]["requests"] == 2 and found["usage"]["cached_tokens"] > 0
    assert found["answer"]
    assert not any("expected a line such as" in reason for reason in found["plan_errors"])
    found = json.loads(intaglio(*options, "--no-grammar")[1])
    (error,) = found["plan_errors"]  # text that is no call is generated up to the limit
    assert "expected" in error or "limit of 400 tokens" in error
    assert found["replans"] == []
