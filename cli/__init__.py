"""The command line: one verb, one file. A verb is imported when it is called, so that `--help` is immediate."""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from contextlib import suppress
from typing import NoReturn, TextIO

import click
from click.shell_completion import CompletionItem

from intaglio import interrupts
from intaglio.cli.completion import COMPLETE, answer, completed
from intaglio.cli.printing.printable import printable
from intaglio.cli.running.command import VerbGroup
from intaglio.cli.running.exit_codes import ERROR
from intaglio.display.verbosity import is_quiet
from intaglio.errors import FULL, IntaglioError, full_errno
from intaglio.processes import async_run
from intaglio.version import __version__

# Stage -> verb -> its line in `intaglio --help`, in the order of the workflow. The command is in `intaglio.cli.<verb>`.
STAGES = {
    "Make a bundle from a checkpoint": {
        "convert": "Convert another toolkit's speech recogniser to a checkpoint.",
        "export": "Trace a checkpoint to an ONNX bundle, and check it.",
        "models": "List the types of models that are known to work.",
    },
    "Make it smaller and faster": {
        "recipes": "List the recipes of compress, and what each is for.",
        "compress": "Run a recipe of graph passes on a bundle.",
        "sensitivity": "Measure how sensitive a decoder is to each of its weights.",
        "train": "Fine-tune, align drafts, prune, train speech recognisers.",
        "build": "Compile engines: ONNX Runtime, TensorRT, TensorRT-RTX.",
    },
    "Check it": {
        "validate": "Compare a bundle with its source or another bundle.",
        "inspect": "Show a bundle's operators, sizes, passes, engines and hashes.",
        "gpu-check": "Check every CUDA kernel on this machine's GPU, and time it.",
    },
    "Use it": {
        "run": "Embed, classify, fill blanks; transcribe recordings.",
        "generate": "Generate text: greedy, sampled or speculative; streamed.",
        "chat": "Chat with a decoder on the terminal.",
        "agent": "Answer a question with tools and a model.",
        "serve": "Serve bundles behind the OpenAI HTTP API.",
        "deploy": "Write what Triton or Ray Serve serves.",
        "serve-tools": "Serve tools of agents to other programs, as an MCP server.",
    },
    "Measure and tune": {
        "bench": "Measure latency, throughput and memory, beside a baseline.",
        "roofline": "Compare the speed with the limits of this machine.",
        "tune": "Find the fastest kernels for compressed weights here.",
        "tune-decoding": "Find the fastest thresholds of BiLD, for two models.",
    },
    "Set up": {
        "doctor": "Show what is installed and offered here, and what is broken.",
        "completion": "Print the completion script for bash, zsh or fish.",
    },
}
VERBS = {name: line for verbs in STAGES.values() for name, line in verbs.items()}

TRACEBACK = "INTAGLIO_TRACEBACK"  # environment variable; when set, errors show where they were raised
EPILOG = """\b
Begin with:
  intaglio export ./all-MiniLM-L6-v2 -o minilm   make a bundle of a checkpoint
  intaglio run minilm "A sentence to embed."     use it
  intaglio COMMAND --help                        options and examples
"""


class Verbs(VerbGroup):
    """The group of verbs, each loaded when it is called."""

    def list_commands(self, context: click.Context) -> list[str]:
        """Return the verbs in the order of the workflow."""
        return list(VERBS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        """Import the verb's file and return its command."""
        if name not in VERBS:
            return None
        verb = name.replace("-", "_")
        command = getattr(importlib.import_module(f"intaglio.cli.{verb}"), f"{verb}_command")
        assert isinstance(command, click.Command)
        if context.resilient_parsing:  # a shell asks
            return completed(command)
        return command

    def shell_complete(self, context: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete verbs without importing them; else options."""
        verbs = [CompletionItem(name, help=summary) for name, summary in VERBS.items() if name.startswith(incomplete)]
        return verbs or click.Command.shell_complete(self, context, incomplete)

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """List the verbs by stage, without importing them."""
        width = max(map(len, VERBS))
        for stage, verbs in STAGES.items():
            with formatter.section(stage):
                formatter.write_dl([(name.ljust(width), line) for name, line in verbs.items()])


def _version(context: click.Context, parameter: click.Parameter, given: bool) -> None:
    """Print the version, with -v all that `intaglio doctor` prints."""
    verbose = context.params.get("verbose", False)
    if not given:
        if verbose:
            raise click.UsageError("-v goes with --version, or behind a command: intaglio COMMAND -v.", context)
        return
    if not verbose:
        click.echo(f"intaglio, version {__version__}")
        context.exit()
    from intaglio.cli.doctor import examine

    context.exit(examine())


@click.group(cls=Verbs, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.option("--version", is_flag=True, expose_value=False, callback=_version, help="Show the version; -v: as doctor.")
@click.option("-v", "verbose", is_flag=True, is_eager=True, hidden=True)
def cli(verbose: bool) -> None:
    """Take a transformer from its checkpoint to a compressed, validated engine, and run it."""


def main() -> None:
    """Run the program `intaglio`: errors become one line on standard error and exit code 2, never a traceback.

    Ctrl-C is exit code 130, SIGTERM 143, as shells have it.
    """
    interrupts.install()
    warnings.showwarning = _Warnings().show
    try:
        if question := os.environ.get(COMPLETE):
            code = answer(cli, question)
        else:
            with cli.make_context("intaglio", sys.argv[1:]) as context:
                code = cli.invoke(context)
        sys.stdout.flush()
    except click.exceptions.Exit as request:  # --help and --version
        code = request.exit_code
    except BaseException as error:
        if TRACEBACK in os.environ:
            raise
        message = _message(error)
        if message is not None:
            try:
                click.echo(message, err=True)
            except OSError:  # the reader of standard error has closed it too
                _discard(2)
        if isinstance(error, OSError | SystemExit):  # buffered output cannot be written
            _discard(1)
        interrupted = isinstance(error, KeyboardInterrupt | click.exceptions.Abort)
        _exit(interrupts.exit_code(getattr(error, "number", None)) if interrupted else ERROR)
    _exit(code if isinstance(code, int) else 0)


def _exit(code: int) -> NoReturn:
    """Exit, at once if tasks or threads of tools, which ignore that they should end, would hold that up."""
    if async_run.is_left():
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)
    sys.exit(code)


def _discard(descriptor: int) -> None:
    """Drop the buffer of an output that nobody reads, as its flush at exit would change the exit code."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)


class _Warnings:
    """Shows each warning once, in one line, without its file and line number."""

    def __init__(self) -> None:
        self._shown: set[str] = set()

    def show(
        self,
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        """Print a warning; replaces `warnings.showwarning`."""
        text = printable(" ".join(str(message).split()))
        if text not in self._shown and not is_quiet():
            self._shown.add(text)
            click.echo(f"intaglio: warning: {text}", err=True)


def _message(error: BaseException) -> str | None:
    """Return the line that reports an error to the user; None where the reader of our output closed its end."""
    match error:
        case click.exceptions.NoArgsIsHelpError():
            return error.format_message()
        case BrokenPipeError() | SystemExit():  # rich turns the first into the second
            return None
        case click.ClickException():
            context = getattr(error, "ctx", None)
            message = f"{error.format_message()} See: {context.command_path if context else 'intaglio'} --help"
        case IntaglioError():
            message = str(error)
        case KeyboardInterrupt() | click.exceptions.Abort():
            message = "interrupted. Unfinished output was removed; run the command again."
        case MemoryError():
            message = "out of memory. Close other programs, or use a machine with more memory."
        case _ if (full := full_errno(error)) is not None:
            where = f"{error.filename}: " if getattr(error, "filename", None) else ""  # type: ignore[attr-defined]
            message = f"{where}{os.strerror(full)}. {FULL[full]}"
        case ModuleNotFoundError(name=str(name)) if name.partition(".")[0] != "intaglio":
            message = f"{name} is not installed, which Intaglio requires. Run: pip install intaglio"
        case OSError():
            where = f"{error.filename}: " if error.filename else ""
            message = f"{where}{error.strerror or error}. Check the path, its permissions and the disk."
        case _:
            message = f"{type(error).__name__}: {error}. This is a bug in intaglio; {TRACEBACK}=1 shows where."
    return printable(f"intaglio: {' '.join(message.split())}")
