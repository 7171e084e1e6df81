"""A pipe whose reader exits early, as `head` does, ends the program without a message."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from covering import few

PROGRAM = [sys.executable, "-P", "-m", "intaglio"]


def stderr_after(command: list[str], taken: int, stdin: bytes = b"") -> str:
    """Standard error of the program if its reader exits after `taken` bytes; 0: before the start."""
    reading, writing = os.pipe()
    if not taken:
        os.close(reading)
    with subprocess.Popen(
        [*PROGRAM, *command], stdin=subprocess.PIPE, stdout=writing, stderr=subprocess.PIPE
    ) as process:
        os.close(writing)
        assert process.stdin is not None and process.stderr is not None
        process.stdin.write(stdin)
        process.stdin.close()
        if taken:
            assert os.read(reading, taken)
            os.close(reading)
        stderr = process.stderr.read().decode()
        process.wait(timeout=60)
    return stderr


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    """Prompts whose JSON output exceeds the capacity of a pipe."""
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"text {number}"}) + "\n" for number in range(500)))
    return path


def test_closed_pipe_ends_streamed_text(make_decoder: Callable[..., tuple[Path, Path]]) -> None:
    _, endless = make_decoder("llama", max_position_embeddings=10_000_000)
    assert stderr_after(["generate", str(endless), "one", "-n", "1000000", "--ignore-eos"], 1) == ""


@pytest.mark.covering(1)
@pytest.mark.parametrize("taken", [0, 1])
@pytest.mark.parametrize("options", [["--json"], ["--json", "--batch", "3", "--strategy", "ngram", "--work"]])
def test_closed_pipe_ends_json_lines(options: list[str], taken: int, tiny_decoder: Path, prompts: Path) -> None:
    assert stderr_after(["generate", str(tiny_decoder), "--data", str(prompts), "-n", "8", *options], taken) == ""


@pytest.mark.proof
@pytest.mark.parametrize("options", few([[], ["--json"]], [[]]))  # lines of JSON: test_closed_pipe_ends_json_lines
def test_closed_pipe_ends_tables_and_answers(options: list[str], tiny_bundle: Path, tiny_decoder: Path) -> None:
    assert stderr_after(["inspect", str(tiny_bundle), *options], 0) == ""
    assert stderr_after(["run", str(tiny_bundle), *options], 1, b"text\n" * 1500) == ""
    assert stderr_after(["chat", str(tiny_decoder), *options], 0, b"text\n" * 3) == ""


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_usage_error_keeps_its_exit_code_if_stderr_is_closed(unbuffered: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [*PROGRAM, "inspect", "/no/bundle"]
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    assert subprocess.run(command, stdout=writing, stderr=writing, env=environment, check=False).returncode == 2
    os.close(writing)
