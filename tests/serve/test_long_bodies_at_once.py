"""Long bodies are decoded in threads, several at the same time, the first ones of a process, too."""

import subprocess
import sys

PROCESSES = 6  # each decodes such bodies for the first time once
PROGRAM = """
import asyncio, json, sys
from intaglio.serve.endpoints.chat_completions import ChatRequest
from intaglio.serve.application import SHORT_BODY, decoded
sys.setswitchinterval(1e-7)
messages = [{"role": "user", "content": "a" * 2 * SHORT_BODY}]
body = json.dumps({"model": "a", "messages": messages}).encode()
async def all_of_them():
    return await asyncio.gather(*(decoded(body, ChatRequest) for _ in range(4)))
assert [len(each.messages) for each in asyncio.run(all_of_them())] == [1] * 4
"""


def test_first_long_bodies_are_decoded_at_once() -> None:
    running = [
        subprocess.Popen([sys.executable, "-c", PROGRAM], stderr=subprocess.PIPE, text=True) for _ in range(PROCESSES)
    ]
    ended = [(each.communicate()[1], each.returncode) for each in running]
    assert ended == [("", 0)] * PROCESSES
