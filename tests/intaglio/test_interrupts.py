"""An interrupt ends the program with its exit code, even if it is swallowed, and leaves no files."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

PROGRAM = """
import os, signal, sys
from pathlib import Path
from intaglio import cli
from intaglio.files import atomic
import intaglio.bundle.inspection

def inspect(bundle):
    with atomic.atomic_directory(Path(bundle)) as directory:
        (directory / "bundle.json").write_text("{{}}")
        {how}

intaglio.bundle.inspection.inspect = inspect
sys.argv = ["intaglio", "inspect", sys.argv[1]]
cli.main()
"""
KILL = "os.kill(os.getpid(), signal.SIGINT)"


@pytest.mark.parametrize(
    "how",
    [KILL, f"exec('import os, signal; {KILL}')", f"\n        try: {KILL}\n        except BaseException: pass"],
    ids=["plain", "in code compiled from a string", "swallowed by a library"],
)
def test_interrupt_is_never_lost_and_never_kills(how: str, tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-c", PROGRAM.format(how=how), str(tmp_path / "out")]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 130
    assert found.stderr == "intaglio: interrupted. Unfinished output was removed; run the command again.\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_second_signal_ends_the_program_immediately(number: signal.Signals, tmp_path: Path) -> None:
    """Also if the first one is swallowed repeatedly; simultaneous signals count as one."""
    hangs = """
        import time
        while True:
            try:
                print('runs', flush=True)
                time.sleep(60)
            except BaseException:
                print('swallowed', flush=True)"""
    command = [sys.executable, "-P", "-c", PROGRAM.format(how=hangs), str(tmp_path / "out")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "runs\n"
        program.send_signal(number)
        program.send_signal(number)
        assert program.stdout.readline() == "swallowed\n"
        time.sleep(0.3)
        assert program.poll() is None
        program.send_signal(number)
        _, errors = program.communicate(timeout=10)
    assert program.returncode == 128 + number
    assert errors.strip().startswith("intaglio: ended at once.")
