"""An interrupt ends the program with its exit code, whoever swallows it, and leaves nothing behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import os, signal, sys
from pathlib import Path
from intaglio import cli, files
import intaglio.inspection

def inspect(bundle):
    with files.atomic_directory(Path(bundle)) as directory:
        (directory / "bundle.json").write_text("{{}}")
        {how}

intaglio.inspection.inspect = inspect
sys.argv = ["intaglio", "inspect", sys.argv[1]]
cli.main()
"""
KILL = "os.kill(os.getpid(), signal.SIGINT)"


@pytest.mark.parametrize(
    "how",
    [KILL, f"exec('import os, signal; {KILL}')", f"\n        try: {KILL}\n        except BaseException: pass"],
    ids=["plain", "in code compiled from a string", "swallowed by a library"],
)
def test_an_interrupt_is_never_lost_and_never_kills(how: str, tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-c", PROGRAM.format(how=how), str(tmp_path / "out")]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 2
    assert found.stderr == "intaglio: interrupted. Unfinished output was removed; run the command again.\n"
    assert list(tmp_path.iterdir()) == []
