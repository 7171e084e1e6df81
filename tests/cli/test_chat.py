"""`intaglio chat`: messages from a pipe and from a terminal, its commands, and interrupting an answer."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tiny_decoders import CHAT

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def chat(intaglio: Run, tiny_decoder: Path) -> Run:
    """Run `intaglio chat` on the tiny decoder, whose answers have 4 tokens, with messages from a pipe."""

    def run(stdin: str, *options: object) -> tuple[int, str, str]:
        return intaglio("chat", tiny_decoder, "-n", 4, "--ignore-eos", *options, stdin=stdin)

    return run


def test_each_line_is_a_message_of_one_conversation(chat: Run) -> None:
    code, out, err = chat("Why?\n\nHow?\n", "--system", "S", "--json")
    assert (code, err) == (0, "")
    first, second = (json.loads(line) for line in out.splitlines())
    assert first["prompt"] == "<system>S<user>Why?>"
    assert second["prompt"] == f"<system>S<user>Why?<assistant>{first['text']}<user>How?>"
    assert len(second["tokens"]) == 4
    code, out, err = chat("Why?\nHow?\n", "--system", "S")
    assert (code, out) == (0, f"{first['text']}\n\n{second['text']}\n")
    assert [line.split(",")[0] for line in err.splitlines()] == ["4 tokens", "4 tokens"]


def test_commands_change_the_conversation_and_print_nothing_to_stdout(chat: Run) -> None:
    lines = ["/help", "a", "/reset", "b", "/system  T x ", "c", "/system", "/reset", " /d", "/nope", "/quit", "never"]
    code, out, err = chat("\n".join(lines), "--json")
    assert code == 0
    a, b, c, d = (json.loads(line) for line in out.splitlines())
    assert (a["prompt"], b["prompt"]) == ("<user>a>", "<user>b>")
    assert c["prompt"] == f"<system>T x<user>b<assistant>{b['text']}<user>c>"
    assert d["prompt"] == "<user>/d>"
    assert "/quit         leave" in err and "/nope: no such command" in err


def test_trace_follows_the_answer(intaglio: Run, tiny_decoder: Path) -> None:
    options = ("-n", 4, "--ignore-eos", "--draft", tiny_decoder, "--strategy", "speculative")
    plain = intaglio("chat", tiny_decoder, *options, stdin="Why?\n")[1]
    traced = intaglio("chat", tiny_decoder, *options, "--trace", stdin="Why?\n/trace\nWhy?\n")[1]
    answer, trace, blank, _ = traced.split("\n", 3)
    assert answer + "\n" == plain and not blank
    assert "{+" in trace and re.sub(r"\{\+|\+\}", "", trace) == answer
    assert "{+" not in traced.split("\n", 3)[3]


def test_dropped_messages_of_a_long_conversation_are_reported(chat: Run) -> None:
    code, out, err = chat(f"{'a' * 20}\n{'b' * 20}\n", "--json")
    assert code == 0
    assert json.loads(out.splitlines()[1])["prompt"] == f"<user>{'b' * 20}>"
    assert "no longer fits into the model's 64 tokens: the oldest 2 messages were dropped. /reset" in err


def test_too_long_message_is_refused_and_the_others_are_answered(chat: Run) -> None:
    code, out, err = chat(f"{'a' * 70}\nb\n", "--json")
    assert code == 1
    assert json.loads(out)["prompt"] == "<user>b>"
    assert err.startswith("intaglio: prompt of 77 tokens: the model takes at most 64")


@pytest.mark.parametrize(
    ("stdin", "options", "message"),
    [
        (b"\xff\xfe\n", [], "standard input: line 1 is not UTF-8 text"),
        (b"a\n", ["--fallback", "0.5"], "strategy 'greedy' takes no --fallback"),
        (b"a\n", ["--strategy", "bild"], "needs a draft model: add --draft BUNDLE"),
    ],
)
def test_usage_error_prints_one_line_and_exits_with_code_2(
    stdin: bytes, options: list[str], message: str, tiny_decoder: Path
) -> None:
    command = [sys.executable, "-P", "-m", "intaglio", "chat", str(tiny_decoder), *options]
    found = subprocess.run(command, input=stdin, capture_output=True, check=False)
    assert (found.returncode, found.stdout) == (2, b"")
    (line,) = found.stderr.decode().splitlines()
    assert line.startswith("intaglio: ") and message in line


def test_bundle_without_chat_template_is_refused_in_one_line(intaglio: Run, trained_pair: tuple[Path, Path]) -> None:
    code, out, err = intaglio("chat", trained_pair[0], stdin="Hello\n")
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert "has no chat template" in line


CONTROLLING = "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); from intaglio.cli import main; main()"


class Terminal:
    """The program on its own terminal, where Ctrl-C is a key."""

    def __init__(self, *arguments: str):
        self._keyboard, line = os.openpty()
        command = [sys.executable, "-P", "-c", CONTROLLING, *arguments]
        environment = {**os.environ, "TERM": "dumb"}
        self.process = subprocess.Popen(
            command, stdin=line, stdout=line, stderr=line, start_new_session=True, env=environment
        )
        os.close(line)
        self.screen = ""

    def type(self, text: str) -> None:
        os.write(self._keyboard, text.encode())

    def until(self, expected: str, seconds: float = 60.0) -> str:
        """Wait for a text; return the output up to it."""
        end = time.monotonic() + seconds
        while expected not in self.screen:
            assert time.monotonic() < end, f"{expected!r} did not appear in {self.screen[-2000:]!r}"
            if select.select([self._keyboard], [], [], 0.1)[0]:
                self.screen += os.read(self._keyboard, 1 << 16).decode(errors="replace")
        before, _, self.screen = self.screen.partition(expected)
        return before

    def close(self) -> int:
        """The exit code."""
        code = self.process.wait(timeout=30)
        os.close(self._keyboard)
        return code


@pytest.fixture
def terminal(make_decoder: Callable[..., tuple[Path, Path]]) -> Iterator[Terminal]:
    """A chat with a model that never ends an answer."""
    _, endless = make_decoder("llama", chat=CHAT, max_position_embeddings=10_000_000)
    opened = Terminal("chat", str(endless), "-n", "10000000", "--ignore-eos", "--temperature", "1")
    yield opened
    if opened.process.poll() is None:
        opened.process.kill()
        opened.process.wait()


def test_ctrl_c_stops_the_answer_and_ctrl_d_quits(terminal: Terminal) -> None:
    terminal.until("Ctrl-D leaves.")
    terminal.until("> ")
    for _ in range(2):  # the second interrupt works like the first
        terminal.type("Why?\n")
        terminal.until("Why?")
        time.sleep(0.3)
        terminal.type("\x03")
        assert "tokens, " in terminal.until("Interrupted.")
        terminal.until("> ")
    time.sleep(
        0.5
    )  # Python's line editing handles a signal that arrives between its prompt and its wait only at the next key
    terminal.type("half a line\x03")
    terminal.until("> ")
    terminal.type("/help\n")
    terminal.until("/quit")
    terminal.until("> ")
    terminal.type("\x04")
    assert terminal.close() == 0


def test_sigterm_ends_the_program(terminal: Terminal) -> None:
    terminal.until("> ")
    terminal.type("Why?\n")
    terminal.until("Why?")
    time.sleep(0.3)
    terminal.process.send_signal(signal.SIGTERM)
    terminal.until("intaglio: interrupted.")
    assert terminal.close() == 128 + signal.SIGTERM
