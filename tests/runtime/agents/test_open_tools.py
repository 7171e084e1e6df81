"""Sources of tools: names, a user's Python file, servers."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from mcp_servers import OURS, script

from intaglio.errors import UsageError
from intaglio.runtime.agents.open_tools import open_tools, unique
from intaglio.runtime.agents.plan.grammar import plan_grammar
from intaglio.runtime.agents.toolbox.arithmetic import CALCULATE
from intaglio.runtime.agents.tools.mcp_client import Server
from intaglio.runtime.agents.tools.tool import Tool, ToolError

TOOLS_FILE = """
from helper import greet
from intaglio.runtime.agents.tools.tool import Tool, ToolError
NOTHING = {"type": "object", "properties": {}}
hello = Tool("hello", "Greet.", NOTHING, greet)
again = hello
world = Tool("world", "Greet all.", NOTHING, lambda: "hello, world")
"""


def opened(*sources: str, search: str | None = None) -> tuple[dict[str, Tool], str | None]:
    """Open the sources, and call the search tool of this name."""

    async def names() -> tuple[dict[str, Tool], str | None]:
        async with open_tools(sources) as tools:
            return tools, tools[search].function(query="text") if search else None

    return asyncio.run(names())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("docs", "notes"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.txt").write_text(f"the text of {name}")
    (tmp_path / "mine.py").write_text(TOOLS_FILE)
    (tmp_path / "helper.py").write_text("def greet(): return 'hello'")
    return tmp_path


def test_every_kind_of_source_opens_its_tools(folder: Path) -> None:
    sources = ["calculate", f"search:{folder}/docs", "pages", f"pages:{folder}", f"{folder}/mine.py"]
    tools, found = opened(*sources, search="search")
    assert list(tools) == ["calculate", "search", "read_page", "read_file", "hello", "world"]
    assert tools["calculate"].function(expression="1 + 1") == 2
    assert found == "[a.txt] the text of docs"
    assert tools["read_file"].function(path="docs/a.txt") == "the text of docs"
    assert tools["hello"].function() == "hello"


def test_server_tools_and_local_tools_open_together(folder: Path) -> None:
    async def call() -> None:
        async with open_tools([script(folder, "ours.py", OURS), "calculate"]) as tools:
            assert await tools["intaglio_calculate"].function(expression="2 * 3") == 6
            assert tools["calculate"].function(expression="2 * 3") == 6
            assert "echo" in tools

    asyncio.run(call())


def test_two_searches_are_named_after_their_folders(folder: Path) -> None:
    sources = [f"search:{folder}/docs", f"search:{folder}/notes", "calculate", "calculate"]
    tools, found = opened(*sources, search="notes_search")
    assert list(tools) == ["docs_search", "notes_search", "calculate"]
    assert [tool.name for tool in tools.values()] == list(tools)
    assert found == "[a.txt] the text of notes"


@pytest.mark.parametrize("names", [["s", "s", "s"], ["", "", ""], ["ü §", "ü §"], ["x" * 100] * 3])
def test_any_server_names_make_valid_distinct_tool_names(names: Sequence[str]) -> None:
    tools = unique([Server(name, [CALCULATE, CALCULATE]) for name in names])
    assert len(tools) == 2 * len(names)
    assert all(name == tool.name for name, tool in tools.items())


def test_generated_name_does_not_collide_with_another_tool() -> None:
    taken = Tool("b_calculate", "", {"type": "object"}, int)
    tools = unique([Server("a", [CALCULATE, taken]), Server("b", [CALCULATE])])
    assert list(tools) == ["a_calculate", "b_calculate", "b_calculate_2"]


def test_plan_ending_name_is_prefixed() -> None:
    """The user of a server cannot rename its tools."""
    join, finish = (Tool(name, "", {"type": "object"}, int) for name in ("join", "finish"))
    tools = unique([Server("sql", [join, CALCULATE]), Server("", [finish])])
    assert list(tools) == ["sql_join", "calculate", "finish_2"]
    plan_grammar(list(tools.values()))  # which would refuse them


@pytest.mark.parametrize("source", ["", "calc", "search", "search:", "calculate:x", "ftp://host", "mcp:", "mcp:'open"])
def test_unknown_source_is_rejected_before_opening(folder: Path, source: str) -> None:
    touch = f"mcp:touch {folder}/started"
    with pytest.raises(UsageError, match=r"[Ee]xpected .*mcp:COMMAND"):
        opened(touch, source)
    assert not (folder / "started").exists()


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("x = 1\ny = (\n", r"mine\.py:2: SyntaxError: '\(' was never closed"),
        ("x = 1\n\nimport nonexistent_library\n", r"mine\.py:3: ModuleNotFoundError: No module named"),
        ("def f():\n    return 1 / 0\nf()\n", r"mine\.py:2: ZeroDivisionError: division by zero"),
        ("raise SystemExit('bye')", r"mine\.py:1: SystemExit: bye"),
        ("open('/nowhere')", r"mine\.py:1: FileNotFoundError"),
        ("import helper", r"mine\.py:1: NameError: name 'broken' is not defined"),
        ("x = 1", "no tools. Define one"),
        (b"\xff\xfe", r"mine\.py.*: (SyntaxError|UnicodeDecodeError)"),
        (b"x = '\0'", r"mine\.py.*: (SyntaxError|ValueError)"),
        (
            "from intaglio.runtime.agents.tools.tool import Tool\nTool('a b', '', {}, int)",
            "mine.py:2: UsageError: tool 'a b'",
        ),
    ],
)
def test_file_error_is_one_line_with_its_location(folder: Path, code: str | bytes, message: str) -> None:
    (folder / "helper.py").write_text("broken")
    sys.modules.pop("helper", None)
    (folder / "mine.py").write_bytes(code.encode() if isinstance(code, str) else code)
    with pytest.raises(UsageError, match=message) as raised:
        opened(f"{folder}/mine.py")
    assert len(str(raised.value).splitlines()) == 1
    assert str(folder) not in sys.path


def test_missing_files_and_folders_are_named(folder: Path) -> None:
    for source in (f"{folder}/none.py", f"search:{folder}/none", f"pages:{folder}/none"):
        with pytest.raises(UsageError, match="none"):
            opened(source)


def test_importing_agents_loads_no_optional_library() -> None:
    code = (
        "import sys, intaglio.runtime.agents.open_tools, intaglio.runtime.agents.tools.mcp_server;"
        "print([name for name in ('mcp', 'httpx2', 'anyio', 'uvicorn', 'jsonschema') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_documented_tools_work(tmp_path: Path) -> None:
    page = Path(__file__).parents[3] / "docs" / "agents" / "agent_tools.md"
    section = page.read_text().split("## Your own tools")[1].split("\n## ")[0]
    decorated, described = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    (tmp_path / "decorated.py").write_text(decorated)
    (tmp_path / "described.py").write_text(described)
    tools, _ = opened(f"{tmp_path}/decorated.py", f"{tmp_path}/described.py")
    assert list(tools) == ["population", "area"]
    assert tools["population"].description == "Return the number of inhabitants of a city."
    assert tools["population"].properties == {"city": {"type": "string", "description": "its name in English"}}
    assert [each.timeout for each in tools.values()] == [10, 10]
    assert tools["area"].function(city="Graz") == 127.6
    assert tools["population"].function(city="Graz") == 302749
    with pytest.raises(ToolError, match="unknown city 'Rome', expected one of Vienna, Graz"):
        tools["population"].function(city="Rome")
