"""The command line: one verb, one file. A verb is imported when it is called, so that `--help` is immediate."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from types import FrameType

import click

import intaglio
from intaglio.errors import IntaglioError

# Verb -> its line in `intaglio --help`, in the order of the work. The command lies in `intaglio.cli.<verb>`.
VERBS = {
    "export": "Trace a checkpoint to an ONNX bundle and check it against the source model.",
    "compress": "Run a recipe of graph passes on a bundle.",
    "build": "Compile a bundle's engines: ONNX Runtime, TensorRT, TensorRT-RTX.",
    "validate": "Compare a bundle with its source, another bundle, or another runtime.",
    "run": "Run a bundle on text: embed, classify, fill blanks.",
    "inspect": "Show a bundle's operators, sizes, passes, engines and hashes.",
}

ERROR = 2  # exit code of whatever the user can mend, of an interrupt too
EPILOG = """\b
Example:
  intaglio export ./all-MiniLM-L6-v2 -o minilm
  intaglio validate minilm
  intaglio run minilm "A sentence to embed."
"""


class Verbs(click.Group):
    """The group of verbs, each loaded when it is called."""

    def list_commands(self, context: click.Context) -> list[str]:
        """The verbs in the order of the work."""
        return list(VERBS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        """Import the verb's file and return its command."""
        if name not in VERBS:
            return None
        command = getattr(importlib.import_module(f"intaglio.cli.{name}"), f"{name}_command")
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """List the verbs without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(VERBS.items()))


@click.group(cls=Verbs, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(intaglio.__version__, prog_name="intaglio")
def cli() -> None:
    """Take a transformer from its checkpoint to a compressed, validated engine, and run it."""


def main() -> None:
    """The program `intaglio`: errors become one line on standard error and exit code 2, never a traceback."""
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        code = cli.main(prog_name="intaglio", standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except click.exceptions.Abort:
        _fail("interrupted. What was begun was removed; run the command again.")
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        hint = f" See: {context.command_path} --help" if context else ""
        _fail(f"{error.format_message()}{hint}")
    except IntaglioError as error:
        _fail(str(error))
    except KeyboardInterrupt:
        _fail("interrupted. What was begun was removed; run the command again.")
    except BrokenPipeError:  # the reader of our output has gone, as in `intaglio run ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(ERROR)
    except MemoryError:
        _fail("not enough memory. Close other programs, or use a machine with more.")


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Make a request to terminate end the program as Ctrl-C does, so that temporary files are removed."""
    raise KeyboardInterrupt


def _fail(message: str) -> None:
    click.echo(f"intaglio: {' '.join(message.split())}", err=True)
    sys.exit(ERROR)
