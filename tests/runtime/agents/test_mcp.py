"""The MCP client against Intaglio's server, as a real process over stdio and HTTP, and against broken servers."""

from __future__ import annotations

import asyncio
import signal
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest
from mcp_servers import OURS, http_server, script

from intaglio.errors import UsageError
from intaglio.runtime.agents.toolbox.arithmetic import CALCULATE
from intaglio.runtime.agents.tools import mcp_client
from intaglio.runtime.agents.tools.mcp_client import mcp_tools, read_command, result_value
from intaglio.runtime.agents.tools.mcp_server import serve_tools
from intaglio.runtime.agents.tools.tool import Tool, ToolError

Use = Callable[[dict[str, Tool]], Awaitable[None]]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server for the tests that do not end it."""
    with http_server(tmp_path_factory.mktemp("server")) as (address, _):
        yield address


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that does not end is terminated and killed without the usual delays."""
    for limit in ("PROCESS_TERMINATION_TIMEOUT", "FORCE_KILL_TIMEOUT"):
        monkeypatch.setattr(f"mcp.client.stdio.{limit}", 0.3)
    monkeypatch.setattr(mcp_client, "CLOSE_SECONDS", 2.0)


def use(source: str, body: Use, start: float = 30.0, call: float = 30.0) -> None:
    """Open the tools of a server for `body`, and check that no process and no task are left."""

    async def opened() -> None:
        before = asyncio.all_tasks()
        try:
            async with mcp_tools(source, start, call) as server:
                await body({tool.name: tool for tool in server.tools})
        finally:
            assert asyncio.all_tasks() == before

    before = servers()
    try:
        asyncio.run(opened())
    finally:
        assert servers() <= before


def servers() -> set[psutil.Process]:
    """The running processes below this one: servers, and those of other tests."""
    found = set()
    for each in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if each.status() != psutil.STATUS_ZOMBIE:
                found.add(each)
    return found


async def check_all(tools: dict[str, Tool]) -> None:
    assert list(tools)[:3] == ["calculate", "echo", "fail"]
    assert tools["calculate"].parameters == CALCULATE.parameters
    assert tools["calculate"].description == CALCULATE.description
    assert await tools["calculate"].function(expression="0.1 + 0.2") == 0.3
    for value in ("text", "", 3, 2.5, True, None, [1, "a"], {"a": {"b": [None]}}, "ü\n", "x" * 10**6):
        assert await tools["echo"].function(value=value) == value
    with pytest.raises(ToolError, match=r"^fail: the disk is full\.$"):
        await tools["fail"].function()
    with pytest.raises(ToolError, match="KeyError: 'missing'"):
        await tools["crash"].function()
    with pytest.raises(ToolError, match=r"^SystemExit"):
        await tools["leave"].function()
    with pytest.raises(ToolError, match="unknown name 'x'"):
        await tools["calculate"].function(expression="x")
    with pytest.raises(ToolError, match="expression: 5 is not of type 'string'"):
        await tools["calculate"].function(expression=5)
    with pytest.raises(ToolError, match="Additional properties are not allowed"):
        await tools["calculate"].function(expression="1", more=1)
    with pytest.raises(ToolError, match=r"^no result within 0\.2 s"):
        await tools["sleep_short"].function(seconds=5)
    began = time.perf_counter()
    answers = await asyncio.gather(*(tools[name].function(seconds=0.5) for name in ["sleep", "later"] * 5))
    assert answers == ["awake"] * 10 and time.perf_counter() - began < 3


def test_tools_are_equal_over_stdio(tmp_path: Path) -> None:
    use(script(tmp_path, "ours.py", OURS), check_all)


def test_tools_are_equal_over_http(url: str) -> None:
    use(url, check_all)


def test_server_exit_during_a_call_raises_immediately(tmp_path: Path) -> None:
    async def body(tools: dict[str, Tool]) -> None:
        for name in ("die", "fail"):  # the second call finds no server
            with pytest.raises(ToolError, match=f"^{name}: .*[Cc]losed"):
                await tools[name].function()

    use(script(tmp_path, "ours.py", OURS), body)


@pytest.mark.proof
def test_http_server_exit_during_a_call_raises_immediately(tmp_path: Path) -> None:
    async def body(tools: dict[str, Tool]) -> None:
        for name in ("die", "fail"):
            with pytest.raises(ToolError, match=f"^{name}: "):
                await tools[name].function()

    with http_server(tmp_path) as (url, process):
        began = time.perf_counter()
        use(url, body)
        assert process.wait(5) == 7 and time.perf_counter() - began < 15


@pytest.mark.proof
def test_unanswered_call_ends_at_its_timeout(tmp_path: Path) -> None:
    async def body(tools: dict[str, Tool]) -> None:
        with pytest.raises(ToolError, match=r"sleep: no result within 1 s"):
            await tools["sleep"].function(seconds=600)
        assert await tools["echo"].function(value=1) == 1  # the connection continues

    use(script(tmp_path, "ours.py", OURS), body, call=1.0)


def test_closing_a_server_that_stopped_reading_is_bounded(tmp_path: Path) -> None:
    before = servers()

    async def body(tools: dict[str, Tool]) -> None:
        (server,) = servers() - before
        server.send_signal(signal.SIGSTOP)
        with pytest.raises(ToolError, match=r"echo: no result within 0\.5 s"):
            await tools["echo"].function(value="x" * 10**6)

    use(script(tmp_path, "ours.py", OURS), body, call=0.5)


@pytest.mark.proof
def test_closing_a_hanging_http_server_is_bounded(tmp_path: Path) -> None:
    async def body(tools: dict[str, Tool]) -> None:
        process.send_signal(signal.SIGSTOP)
        with pytest.raises(ToolError, match=r"echo: no result within 0\.5 s"):
            await tools["echo"].function(value=1)

    with http_server(tmp_path) as (url, process):
        began = time.perf_counter()
        use(url, body, call=0.5)
        assert time.perf_counter() - began < 15


@pytest.mark.proof
def test_cancelled_agent_leaves_no_server(tmp_path: Path) -> None:
    before = servers()
    source = script(tmp_path, "ours.py", OURS)

    async def agent(ready: asyncio.Event) -> None:
        async with mcp_tools(source) as server:
            tools = {tool.name: tool for tool in server.tools}
            ready.set()
            await tools["sleep"].function(seconds=600)

    async def cancelled() -> None:
        ready = asyncio.Event()
        task = asyncio.create_task(agent(ready))
        await ready.wait()
        await asyncio.sleep(0.2)
        for _ in range(3):  # impatient
            task.cancel()
            await asyncio.sleep(0.1)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(cancelled())
    assert servers() <= before


def test_cancelling_during_server_start_leaves_no_server(tmp_path: Path) -> None:
    before = servers()

    async def cancelled() -> None:
        async with asyncio.timeout(0.3):
            async with mcp_tools(script(tmp_path, "slow.py", "import time; time.sleep(600)")):
                raise AssertionError("a server that never answers was opened")

    with pytest.raises(TimeoutError):
        asyncio.run(cancelled())
    assert servers() <= before


STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
time.sleep(600)
"""
ENDLESS = "import sys\nwhile True: sys.stdout.write('lorem ipsum\\n')"
NONSENSE = 'print(\'{"jsonrpc": "2.0", "id": 1, "result": 5}\', flush=True); import time; time.sleep(600)'


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import sys; sys.exit('no licence found')", "It wrote: no licence found"),
        ("import nonexistent_library", "It wrote: ModuleNotFoundError: No module named 'nonexistent_library'"),
        ("import time; time.sleep(600)", r"no answer within 1 s\. Check the command\."),
        ("print('Welcome!', flush=True); import time; time.sleep(600)", "message that is not JSON-RPC.*Welcome"),
        ("import os, time; os.write(1, b'\\xff\\n' * 100); time.sleep(600)", "message that is not JSON-RPC"),
        (ENDLESS, "message that is not JSON-RPC.*lorem"),
        (NONSENSE, "mcp server"),
        (STUBBORN, "no answer within 1 s"),
    ],
)
def test_invalid_server_answers_raise_within_the_timeout(tmp_path: Path, code: str, message: str) -> None:
    async def body(tools: dict[str, Tool]) -> None:
        raise AssertionError(f"opened: {tools}")

    began = time.perf_counter()
    with pytest.raises(ToolError, match=message) as raised:
        use(script(tmp_path, "broken.py", code), body, start=1.0)
    assert len(str(raised.value).splitlines()) == 1
    assert time.perf_counter() - began < 20


def test_missing_command_raises() -> None:
    async def body(tools: dict[str, Tool]) -> None:
        raise AssertionError(f"opened: {tools}")

    with pytest.raises(ToolError, match=r"No such file or directory.*Check the command"):
        use("mcp:/nowhere/server --flag", body)


def test_address_without_server_raises(url: str) -> None:
    async def body(tools: dict[str, Tool]) -> None:
        raise AssertionError(f"opened: {tools}")

    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        with pytest.raises(ToolError, match=r"mcp server 'http.*Check the address\."):
            use(f"http://127.0.0.1:{port}/mcp", body, start=5.0)
    with pytest.raises(ToolError, match=r"Check the address\."):
        use(url.replace("/mcp", "/wrong"), body, start=5.0)
    with socket.create_server(("127.0.0.1", 0)) as mute, pytest.raises(ToolError, match="no answer within 1 s"):
        use(f"http://127.0.0.1:{mute.getsockname()[1]}/mcp", body, start=1.0)


def test_server_environment_is_set_by_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_THE_USER", "1")
    (tmp_path / "dump.py").write_text("import os, sys; sys.exit(','.join(sorted(os.environ)))")
    with pytest.raises(ToolError) as raised:
        source = script(tmp_path, "dump.py", (tmp_path / "dump.py").read_text())
        use(source.replace("mcp:", "mcp:GIVEN=1 "), lambda _: asyncio.sleep(0))
    assert "GIVEN" in str(raised.value) and "PATH" in str(raised.value)
    assert "SECRET_OF_THE_USER" not in str(raised.value)


def test_command_is_split_like_in_a_shell() -> None:
    assert read_command("mcp:KEY='a b' OTHER= run --x='1 2' KEY=3") == (
        {"KEY": "a b", "OTHER": ""},
        ["run", "--x=1 2", "KEY=3"],
    )
    for source in ("mcp:", "mcp:A=1", "mcp:run 'open"):
        with pytest.raises(UsageError, match="Expected mcp:COMMAND"):
            read_command(source)


def test_every_content_type_has_a_text() -> None:
    from mcp import types

    blocks: list[Any] = [
        types.TextContent(type="text", text="a"),
        types.ImageContent(type="image", data="AAAA", mime_type="image/png"),
        types.EmbeddedResource(type="resource", resource=types.TextResourceContents(uri="file:///b", text="b")),
        types.ResourceLink(type="resource_link", name="c", uri="file:///c"),
    ]
    assert result_value(types.CallToolResult(content=blocks)) == "a\n[image image/png, 3 bytes]\nb\n[c file:///c]"
    assert result_value(types.CallToolResult(content=[], structured_content={"result": [1]})) == [1]
    assert result_value(types.CallToolResult(content=[], structured_content={"a": 1})) == {"a": 1}
    with pytest.raises(ToolError, match="failed without a message"):
        result_value(types.CallToolResult(content=[], is_error=True))


def test_cancelled_server_releases_its_port() -> None:
    async def served() -> None:
        addresses: asyncio.Queue[str] = asyncio.Queue()
        serving = asyncio.create_task(serve_tools([CALCULATE], "http", port=0, listening=addresses.put_nowait))
        url = await addresses.get()
        async with mcp_tools(url) as server:
            assert await server.tools[0].function(expression="6 * 7") == 42
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving
        with socket.socket() as again:
            again.bind(("127.0.0.1", int(url.split(":")[2].split("/")[0])))

    asyncio.run(served())


def test_port_in_use_raises() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(UsageError, match="cannot listen on 127"):
        asyncio.run(serve_tools([CALCULATE], "http", port=taken.getsockname()[1]))


def test_hanging_tool_does_not_block_shutdown(tmp_path: Path) -> None:
    async def body(tools: dict[str, Tool]) -> None:
        with pytest.raises(ToolError, match="no result"):
            await tools["sleep"].function(seconds=600)

    began = time.perf_counter()
    use(script(tmp_path, "ours.py", OURS), body, call=0.5)
    assert time.perf_counter() - began < 15


LIBRARY = '''
from mcp.server import MCPServer
server = MCPServer("library/one")


@server.tool(name="get/the forecast")
def forecast(city: str, days: int = 1) -> list[str]:
    """The weather."""
    return [f"{city} {day}" for day in range(days)]


@server.tool()
def count(text: str) -> dict[str, int]:
    return {"characters": len(text)}


@server.tool()
def broken() -> str:
    raise ValueError("no data")


server.run()
'''


@pytest.mark.proof
def test_tools_of_a_server_built_with_the_mcp_library(tmp_path: Path) -> None:
    async def body(tools: dict[str, Tool]) -> None:
        forecast = tools["get_the_forecast"]
        assert (list(forecast.properties), forecast.required) == (["city", "days"], {"city"})
        assert forecast.description == "The weather."
        assert await forecast.function(city="Ulm", days=2) == ["Ulm 0", "Ulm 1"]
        assert await tools["count"].function(text="abc") == {"characters": 3}
        with pytest.raises(ToolError, match="Error executing tool broken"):
            await tools["broken"].function()
        with pytest.raises(ToolError, match="get/the forecast"):
            await forecast.function(city="Ulm", days="many")

    use(script(tmp_path, "library.py", LIBRARY), body)


def test_cross_site_browser_requests_are_rejected(url: str) -> None:
    answers = [
        httpx2.post(url, json={"jsonrpc": "2.0", "id": 1, "method": "ping"}, headers=headers).status_code
        for headers in ({"Host": "attacker.example"}, {"Origin": "http://attacker.example"})
    ]
    assert all(400 <= status < 500 for status in answers), answers


BAD_SCHEMA = """
import asyncio
from mcp import stdio_server, types
from mcp.server.lowlevel import Server

async def list_tools(context, params):
    return types.ListToolsResult(tools=[types.Tool(name="odd", input_schema={"type": "object", "properties": 5})])

async def main():
    server = Server("odd", on_list_tools=list_tools)
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())

asyncio.run(main())
"""


@pytest.mark.proof
def test_invalid_schema_raises_on_open(tmp_path: Path) -> None:
    async def body(tools: dict[str, Tool]) -> None:
        raise AssertionError(f"opened: {tools}")

    with pytest.raises(ToolError, match="tool 'odd': invalid JSON schema: 5 is not of type 'object'"):
        use(script(tmp_path, "odd.py", BAD_SCHEMA), body)
