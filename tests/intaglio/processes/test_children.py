"""Child processes that run under another program, such as a debugger."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from intaglio.processes.children import Child, ChildEndedError

# Answers with its own pid; "sleep" has no answer.
ECHO = """
import os, sys, time
for line in sys.stdin:
    if line == "sleep\\n":
        time.sleep(3600)
    print(os.getpid(), flush=True)
sys.exit(5)
"""
PARENT = """
import sys, time
from intaglio.processes.children import Child
child = Child("echo", under=sys.argv[1:])
print(child.process.pid, child.ask("pid"), flush=True)
time.sleep(3600)
"""
UNDER = ("/bin/sh", "-c", '"$@"; exit $(($? + 1))', "sh")  # runs the command as its child


@pytest.fixture(autouse=True)
def echo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "echo.py").write_text(ECHO)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))


def ends(pid: int) -> bool:
    """Whether the process ends soon; a zombie has."""
    for _ in range(1000):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    return False


def test_child_under_a_program_answers_and_gives_the_programs_exit_code() -> None:
    child = Child("echo", under=UNDER)
    assert int(child.ask("pid")) != child.process.pid
    assert child.finish(60) == 6
    child.end()


def test_child_under_a_program_ends_with_it() -> None:
    child = Child("echo", under=UNDER)
    pid = int(child.ask("pid"))
    child.end()
    assert ends(pid)


@pytest.mark.parametrize("under", [(), UNDER])
def test_child_that_does_not_answer_is_killed(under: tuple[str, ...]) -> None:
    child = Child("echo", under=under)
    pid = int(child.ask("pid"))
    with pytest.raises(ChildEndedError):
        child.ask("sleep", 0.2)
    assert ends(pid)
    child.end()


def test_child_that_does_not_finish_is_killed() -> None:
    child = Child("echo", under=("/bin/sh", "-c", '"$@"; sleep 3600', "sh"))
    pid = int(child.ask("pid"))
    assert child.finish(0.5) == -signal.SIGKILL
    assert ends(pid)
    child.end()


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="no pidfd_open")
def test_child_under_a_program_ends_with_a_killed_parent() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, *UNDER], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    program, child = map(int, parent.stdout.readline().split())
    assert child != program
    parent.kill()
    parent.communicate()
    assert ends(child) and ends(program)
