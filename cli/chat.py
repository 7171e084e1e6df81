"""`intaglio chat`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from intaglio import interrupts
from intaglio.cli.options.choices import BUNDLE
from intaglio.cli.options.generation import generation_options
from intaglio.cli.options.text_lines import lines
from intaglio.cli.printing.generated_text import report_speed, show, show_trace
from intaglio.cli.printing.results import json_option, notice, print_json
from intaglio.cli.running.command import OUTPUT, section, verb
from intaglio.errors import UsageError

if TYPE_CHECKING:
    from intaglio.runtime.generation.conversation import Conversation
    from intaglio.runtime.generation.generate import TextGenerator
    from intaglio.runtime.generation.text_run import TextRun

EPILOG = """\b
Examples:
  intaglio chat llama
  intaglio chat llama --system "Answer in one sentence." --temperature 0.7 --top-p 0.9
  intaglio chat llama --draft small-llama --trace
  printf '/image photo.jpg\\nWhat is in the picture?\\n' | intaglio chat smolvlm
  printf 'My name is Ada.\\nWhat is my name?\\n' | intaglio chat llama --json
"""

COMMANDS = """\
/help         show these commands
/reset        forget the conversation and images for the next message, but keep the system message
/system TEXT  replace the system message; without TEXT, remove it
/image FILE   begin the next message with an image, for a model that reads them; can be repeated
/trace        turn the trace on or off: after each answer, colours show which model wrote what
/quit         leave, as Ctrl-D does
Ctrl-C stops an answer and keeps the partial text. Put a space before a message that begins with /."""


@verb("chat", epilog=EPILOG)
@click.argument("bundle", type=BUNDLE)
@click.option("--system", help="System message.")
@generation_options
@section(OUTPUT)
@click.option("--trace", is_flag=True, help="After each answer, show in colours which model wrote what.")
@json_option
def chat_command(bundle: Path, system: str | None, trace: bool, as_json: bool, **options: Any) -> int:
    """Chat with the decoder in BUNDLE: each line is a message, and the answer is streamed.

    Each message is sent with the whole conversation, through the bundle's chat template. When the conversation and an
    answer no longer fit into the model's context, the oldest question and its answer are dropped, with a notice.
    Messages can also be piped in, one per line; blank lines are skipped. Answers go to standard output, everything else
    to standard error; with --json each answer is one object. Type /help for the commands. Exit code 1 when a piped
    message could not be answered.
    """
    from intaglio.display.progress import step
    from intaglio.runtime.generation.conversation import Conversation
    from intaglio.runtime.generation.generate import TextGenerator
    from intaglio.runtime.strategies import Auto

    with step("opening the model"):
        generator = TextGenerator(bundle, **options)
    with generator:
        chat = _Chat(generator, Conversation(generator, system), trace, as_json)
        if isinstance(generator.method, Auto):
            notice(generator.method.forecast())
        if sys.stdin is None:
            raise UsageError("no messages: standard input is closed. Run chat on a terminal, or pipe messages in.")
        if sys.stdin.isatty() and sys.stdout.isatty():
            notice(f"Chat with {bundle}: /help shows the commands, Ctrl-D leaves.")
            chat.take(_typed())
            return 0
        for line in lines(None):
            if not chat.take([line]) or chat.interrupted:
                break
        return interrupts.exit_code() if chat.interrupted else 1 if chat.refused else 0


def _typed() -> Iterator[str]:
    """Yield the lines typed on the terminal, with Python's line editing and history, until Ctrl-D."""
    import readline  # noqa: F401  `input` edits lines with it

    while True:
        line = None
        with interrupts.answered():
            try:
                line = input("> ")
            except EOFError:
                click.echo()
                return
            except UnicodeDecodeError:
                click.echo("That was not UTF-8 text. Type it again.", err=True)
        if line is None:
            click.echo()  # Ctrl-C left the cursor in the typed line
        else:
            yield line


class _Chat:
    """A conversation on the terminal or in a pipe."""

    def __init__(self, generator: TextGenerator, conversation: Conversation, trace: bool, as_json: bool):
        self.refused = 0  # messages that could not be answered
        self.interrupted = False  # whether the last answer was
        self._generator, self._conversation = generator, conversation
        self._trace, self._json = trace, as_json
        self._answers = 0
        self._images: list[str] = []  # of the next message
        self._commands = {
            "help": lambda _: click.echo(COMMANDS, err=True),
            "reset": self._reset,
            "system": self._system,
            "image": self._image,
            "trace": self._toggle_trace,
        }

    def take(self, given: Iterable[str]) -> bool:
        """Answer each line, or run its command, to the end; return False when one is /quit."""
        for line in given:
            name, _, rest = line.removeprefix("/").partition(" ")
            if not line.startswith("/"):
                self._answer(line.strip())
            elif name == "quit":
                return False
            elif name in self._commands:
                self._commands[name](rest.strip())
            else:
                click.echo(f"/{name}: no such command. /help shows them; a message may begin with a space.", err=True)
        return True

    def _answer(self, message: str) -> None:
        run = self._ask(message) if message else None
        if run is None:
            return
        if self._answers and not self._json and not sys.stdout.isatty():
            click.echo()  # a blank line between two answers, as between two texts of `generate`
        self._answers += 1
        shown = 0
        with interrupts.answered():
            for piece in run:
                if not self._json:
                    show(piece)
                    shown += len(piece)
        self._conversation.answered()
        result = run.result()
        self.interrupted = result.stopped == "interrupted"
        if self._json:
            print_json(result)
            return
        show(result.text[shown:])
        click.echo()
        if self._trace:
            show_trace(self._generator, run, result)
            click.echo()
        report_speed(self._generator, result)

    def _ask(self, message: str) -> TextRun | None:
        """Start the answer and report dropped messages; print the reason and return None where that is impossible."""
        conversation = self._conversation
        images, self._images = self._images, []
        try:
            run = conversation.ask(message, images)
        except UsageError as error:
            self.refused += 1
            again = " Its images are forgotten: name them again with /image." if images else ""
            click.echo(f"intaglio: {error} /reset forgets the conversation.{again}", err=True)
            return None
        if conversation.dropped:
            click.echo(
                f"The conversation no longer fits into the model's {self._generator.limit} tokens: the oldest "
                f"{conversation.dropped} messages were dropped. /reset forgets the rest too.",
                err=True,
            )
        return run

    def _reset(self, _: str) -> None:
        self._conversation.reset()
        self._images.clear()
        click.echo("The conversation was reset.", err=True)

    def _image(self, path: str) -> None:
        if not path:
            click.echo("/image FILE: name a file.", err=True)
            return
        from intaglio.runtime.vision.image_file import read_file

        try:
            read_file(path)  # rather say now that it is not there
        except UsageError as error:
            self.refused += 1
            click.echo(f"intaglio: {error}", err=True)
            return
        self._images.append(path)
        click.echo(f"The next message begins with {path}.", err=True)

    def _system(self, text: str) -> None:
        self._conversation.system = text or None
        click.echo("The system message is set." if text else "The system message was removed.", err=True)

    def _toggle_trace(self, _: str) -> None:
        self._trace = not self._trace
        click.echo(f"The trace is {'shown after each answer' if self._trace else 'off'}.", err=True)
