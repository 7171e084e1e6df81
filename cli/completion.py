"""`intaglio completion`, and the completions themselves: verbs, options, recipe names, and bundles.

A shell starts the program with `_INTAGLIO_COMPLETE` set whenever Tab is pressed, so nothing heavy is imported here.
Options whose values have names list them themselves (`intaglio.cli.options.choices`).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem, get_completion_class, shell_complete

from intaglio.cli.options.choices import OneOf
from intaglio.cli.running.command import verb

if TYPE_CHECKING:
    Kind = click.ParamType[Any]  # generic since click 8.5
else:
    Kind = click.ParamType

PROGRAM = "intaglio"
COMPLETE = "_INTAGLIO_COMPLETE"  # environment variable by which a shell asks for completions of its line
EPILOG = """\b
Examples:
  intaglio completion bash > ~/.local/share/bash-completion/completions/intaglio
  intaglio completion zsh > ~/.zfunc/_intaglio
  intaglio completion fish > ~/.config/fish/completions/intaglio.fish
\b
Create the directory first if it does not exist, and open a new shell afterwards.
bash needs the package bash-completion for this; without it, add to ~/.bashrc:
  eval "$(intaglio completion bash)"
zsh needs these lines in ~/.zshrc:
  fpath+=~/.zfunc
  autoload -Uz compinit && compinit
"""

AGAINST = ("pytorch", "reference")


@verb("completion", epilog=EPILOG)
@click.argument("shell", type=OneOf(["bash", "zsh", "fish"]))
def completion_command(shell: str) -> None:
    """Print the completion script of intaglio for SHELL.

    It completes verbs, options, recipes, targets, strategies and bundles.
    """
    kind = get_completion_class(shell)
    assert kind is not None
    program = click.get_current_context().find_root().command
    click.echo(kind(program, {}, PROGRAM, COMPLETE).source())


def answer(program: click.Command, question: str) -> int:
    """Print the completions of the line that the shell describes in environment variables; return the exit code."""
    return shell_complete(program, {}, PROGRAM, COMPLETE, question)


class Completed(Kind):
    """A parameter type that also lists its values for shells."""

    def __init__(self, kind: Kind, values: Callable[[str], list[CompletionItem]]):
        """Wrap `kind`; `values` returns the completions of a prefix."""
        self.name, self._kind, self._values = kind.name, kind, values

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Convert as the wrapped type does."""
        return self._kind.convert(value, param, ctx)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the values that begin with `incomplete`."""
        return self._values(incomplete)


def completed(command: click.Command) -> click.Command:
    """Add completions to the parameters in `VALUES` of `command` and all its sub-commands."""
    for parameter in command.params:
        if parameter.name in VALUES:
            parameter.type = Completed(parameter.type, VALUES[parameter.name])
    for below in command.commands.values() if isinstance(command, click.Group) else ():
        completed(below)
    return command


def bundles(beginning: str) -> list[CompletionItem]:
    """Complete directories that hold a bundle; if none matches, any directory, so that the user can go deeper."""
    folder, name = os.path.split(beginning)
    found = []
    with suppress(RuntimeError):  # "~" of a user who has no home
        found = sorted(
            str(Path(folder, manifest.parent.name))
            for manifest in Path(folder or ".").expanduser().glob("*/bundle.json")
            if manifest.parent.name.startswith(name)
        )
    return [CompletionItem(path) for path in found] or [CompletionItem(beginning, type="dir")]


def references(beginning: str) -> list[CompletionItem]:
    """Complete the models to compare a bundle with: its source, the reference evaluator, or another bundle."""
    return [CompletionItem(name) for name in AGAINST if name.startswith(beginning)] + bundles(beginning)


def files(beginning: str) -> list[CompletionItem]:
    """Complete files, which the shell lists itself."""
    return [CompletionItem(beginning, type="file")]


# Parameter name, the same in all commands -> its completions.
VALUES: dict[str, Callable[[str], list[CompletionItem]]] = {
    "bundle": bundles,
    "baseline": bundles,
    "draft": bundles,
    "model": bundles,
    "teacher": bundles,
    "against": references,
    "source": files,
}
