"""`intaglio agent` with faulty tools: they print, hang, ignore cancellation, or exit."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from scripted_server import SILENCE, STREAM, Step, chunk, scripted, status, stream

SECONDS = 60
LISTED = status(200, {"object": "list", "data": [{"id": "lm", "object": "model"}]})
TOOLS = """
import asyncio, ctypes, itertools, os, subprocess, sys, threading, time
from intaglio.runtime.agents.tools.from_function import tool

print("imported")

@tool(timeout=TIMEOUT)
async def stubborn() -> str:
    "Ignore that it is cancelled."
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            pass

@tool(timeout=TIMEOUT)
async def waits_for_a_thread() -> str:
    "Wait for a thread that never ends."
    return await asyncio.to_thread(time.sleep, 600)

@tool(timeout=TIMEOUT)
async def blocks() -> str:
    "Block the loop."
    time.sleep(600)

@tool(timeout=TIMEOUT)
def starts_a_thread() -> str:
    "Start a thread that never ends."
    threading.Thread(target=time.sleep, args=(600,)).start()
    return "started"

@tool
def prints() -> str:
    "Print, in all ways."
    print("printed")
    sys.stdout.write("written\\\\n")
    os.write(1, b"to the descriptor\\\\n")
    subprocess.run([sys.executable, "-c", "print('by a process')"], check=True)
    ctypes.CDLL(None).puts(b"by a library")
    sys.__stdout__.write("to the first one\\\\n")
    return "quiet"

@tool(timeout=0.2)
def prints_on() -> str:
    "Print without end, first a flood and then a trickle, which leaves the processor to others."
    for count in itertools.count():
        print("on and on", flush=True)
        time.sleep(0.01 * (count > 2000))

@tool
def closes(after: str) -> str:
    "Close and replace standard output."
    sys.stdout.close()
    sys.stdout = None
    return "closed"

@tool
def moves() -> str:
    "Change the working directory."
    os.chdir("/")
    return "moved"

@tool
def half() -> list:
    "Return half of a surrogate pair, and a key that is one."
    return ["\\\\ud800", {"\\\\udfff": 1}]

@tool
def fails_with_half() -> str:
    "Raise it."
    raise ValueError("\\\\ud800")
"""


def wrote(text: str) -> list[Step]:
    """A streamed answer."""
    return stream(chunk(text, "stop"))


async def started(server: Any, path: Path, *options: str) -> asyncio.subprocess.Process:
    command = [sys.executable, "-P", "-m", "intaglio", "agent", "a", "--tools", str(path), "--model", server.url]
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(*command, *options, stdout=pipe, stderr=pipe)


def run(tmp_path: Path, plan: str, *options: str, timeout: str = "0.3") -> tuple[int, str, str, list[Any]]:
    """The exit code, the output, and the requests to the model."""
    path = tmp_path / "tools.py"
    path.write_text(TOOLS.replace("\\\\", "\\").replace("TIMEOUT", timeout))

    async def main() -> tuple[int, str, str, list[Any]]:
        async with asyncio.timeout(SECONDS), scripted(LISTED, wrote(plan), wrote("Answer: 7")) as server:
            process = await started(server, path, *options)
            out, err = await process.communicate()
            return process.returncode or 0, out.decode(), err.decode(), server.bodies

    return asyncio.run(main())


def test_output_and_leftover_processes_of_tools_change_and_delay_nothing(
    tmp_path: Path,
) -> None:
    plan = "1. prints()\n2. prints_on()\n3. closes($1)\n4. half()\n5. fails_with_half()\n6. moves()\n"
    plan += "7. stubborn()\n8. waits_for_a_thread()\n9. starts_a_thread()\n10. join()"
    code, out, err, bodies = run(tmp_path, plan, "--json")
    found = json.loads(out)
    assert (code, found["answer"], out.count("\n")) == (0, "7", 1)
    # A process and a library write beside Python, so their newline may follow the output of another one.
    for words in (
        *("imported", "printed", "written", "to the descriptor"),
        *("by a process", "by a library", "to the first one", "on and on"),
    ):
        assert words in err
    assert [each["status"] for each in found["tasks"]] == [
        *("done", "failed", "done", "done", "failed", "done"),
        *("failed", "failed", "done"),
    ]
    prompt = bodies[-1]["messages"][-1]["content"]
    assert '$4 = ["?", {"?": 1}]' in prompt and "$5 = error: ValueError: ?" in prompt


@pytest.mark.parametrize(
    ("tool", "signals", "most"),
    [
        ("stubborn", 1, 20.0),
        ("blocks", 2, 10.0),
        pytest.param("stubborn", 2, 10.0, marks=pytest.mark.proof),
        pytest.param("blocks", 1, 30.0, marks=pytest.mark.proof),
    ],
)
def test_ctrl_c_ends_a_run_with_a_hanging_tool(tool: str, signals: int, most: float, tmp_path: Path) -> None:
    path = tmp_path / "tools.py"
    path.write_text(TOOLS.replace("\\\\", "\\").replace("TIMEOUT", "600"))

    async def main() -> tuple[int, float]:
        answer = [STREAM, chunk(f"1. {tool}()\n"), SILENCE]
        async with asyncio.timeout(SECONDS), scripted(LISTED, answer) as server:
            process = await started(server, path)
            while not server.bodies[1:]:
                await asyncio.sleep(0.02)
            await asyncio.sleep(0.5)
            began = time.monotonic()
            for _ in range(signals):
                process.send_signal(signal.SIGINT)
                await asyncio.sleep(0.3)
            await process.communicate()
            return process.returncode or 0, time.monotonic() - began

    code, seconds = asyncio.run(main())
    assert code == 130 and seconds < most
