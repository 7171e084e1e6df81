"""Standard output that is reserved for the result of a command, when its reader is gone."""

from __future__ import annotations

import os
import subprocess
import sys

PROGRAM = """
import sys
import click
from intaglio import cli
from intaglio.cli.agent.reserved_output import reserved_output

@click.command()
def prints():
    with reserved_output() as output:
        output.release()
        for _ in range(LINES):
            click.echo("a line of the result")

cli.Verbs.get_command = lambda self, context, name: prints
sys.argv = ["intaglio", "prints"]
cli.main()
"""


def test_closed_pipe_prints_no_traceback() -> None:
    for lines in ("1", "20_000"):
        reading, writing = os.pipe()
        os.close(reading)
        program = [sys.executable, "-c", PROGRAM.replace("LINES", lines)]
        try:
            done = subprocess.run(program, stdout=writing, stderr=subprocess.PIPE, text=True, check=False, timeout=60)
        finally:
            os.close(writing)
        assert (done.returncode, done.stderr) == (2, "")
