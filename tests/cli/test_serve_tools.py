"""`intaglio serve-tools`: tools for other programs, over standard input and output, and over HTTP."""

from __future__ import annotations

import asyncio
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from covering import few

import intaglio
from intaglio.runtime.agents.open_tools import open_tools

SECONDS = 60
COMMAND = [sys.executable, "-P", "-m", "intaglio", "serve-tools", "calculate"]


async def calculated(source: str) -> object:
    async with asyncio.timeout(SECONDS), open_tools([source]) as tools:
        return await tools["calculate"].function(expression="6 * 7")


def test_tools_are_called_over_standard_input_and_output() -> None:
    path = Path(intaglio.__file__).parents[1]
    assert asyncio.run(calculated(f"mcp:PYTHONPATH={path} {shlex.join(COMMAND)}")) == 42


@pytest.mark.parametrize("number", few([signal.SIGINT, signal.SIGTERM], [signal.SIGTERM]))
def test_tools_are_called_over_http_and_a_signal_stops_the_server(number: signal.Signals) -> None:
    with subprocess.Popen([*COMMAND, "--port", "0"], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        found = re.fullmatch(r"serving calculate at (http://127\.0\.0\.1:\d+/mcp)\n", line)
        assert found is not None, line
        try:
            assert asyncio.run(calculated(found[1])) == 42
        finally:
            process.send_signal(number)
        assert (process.wait(SECONDS), process.stderr.read()) == (0, "")


@pytest.mark.parametrize("number", few([signal.SIGINT, signal.SIGTERM], [signal.SIGINT]))
def test_signal_stops_the_server_while_it_waits_for_input(number: signal.Signals) -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen(COMMAND, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        process.stdin.write('{"jsonrpc": "2.0", "id": 1, "method": "ping"}\n')
        process.stdin.flush()
        assert '"id":1' in process.stdout.readline()
        process.send_signal(number)
        assert (process.wait(SECONDS), process.stderr.read()) == (0, "")


def test_usage_error_prints_one_line_and_exits_with_code_2() -> None:
    found = subprocess.run([*COMMAND, "nonsense"], capture_output=True, text=True, timeout=SECONDS, check=False)
    assert (found.returncode, found.stdout) == (2, "")
    assert re.fullmatch(r"intaglio: tools 'nonsense': expected .*\n", found.stderr)
