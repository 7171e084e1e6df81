"""What all commands share: help with options in groups, -q and -v, and the right name where one is wrong."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import click

from intaglio.cli.options.choices import BundleToRead, BundleToWrite
from intaglio.display.nearest import nearest
from intaglio.display.verbosity import Verbosity, set_verbosity, timed

Decorator = Callable[[Any], Any]
GROUP = "help_group"  # attribute of an option: the section of the help that lists it
OUTPUT = "Output"  # the last section
EXAMPLES = "\b\n"  # click's sign for a paragraph that is not wrapped
WORD = r"""(?:"[^"]*"|'[^']*'|\S)+"""
OPTIONS = re.compile(rf"\s*--?[\w-]+(?:[ ]+(?!-){WORD})?(?=\s|$)|\s*{WORD}")  # of a command, with their values
TIED_HYPHEN = "\N{NON-BREAKING HYPHEN}"
NAMED = 3  # verbs named in an error message


def group(title: str, *options: Decorator) -> Decorator:
    """One decorator for several options, in their order; a command's help lists them under `title`."""

    def give(command: Any) -> Any:
        given = len(_parameters(command))
        for option in reversed(options):
            command = option(command)
        _label(_parameters(command)[given:], title)
        return command

    return give


def gathered(name: str, kind: Callable[..., Any], *options: Decorator) -> Decorator:
    """One decorator for options that a command gets together, as the argument `name`: the `kind` with their values."""

    def give(command: Any) -> Any:
        others = len(_parameters(command))

        @functools.wraps(command)
        def with_options(**given: Any) -> Any:
            values = {each: given.pop(each) for each in names}
            return command(**given, **{name: kind(**values)})

        made: Any = with_options
        for option in reversed(options):
            made = option(made)
        names = [str(parameter.name) for parameter in _parameters(made)[others:]]
        return made

    return give


def section(title: str) -> Decorator:
    """A decorator above options: the help lists those below it, up to the next section, under `title`."""

    def give(command: Any) -> Any:
        _label(_parameters(command), title)
        return command

    return give


def _label(parameters: Iterable[click.Parameter], title: str) -> None:
    for parameter in parameters:
        setattr(parameter, GROUP, getattr(parameter, GROUP, title))


def _parameters(command: Any) -> list[click.Parameter]:
    """Those that decorators have given so far to a function that becomes a command."""
    return list(getattr(command, "__click_params__", []))


def verb(name: str, **attributes: Any) -> Callable[[Callable[..., Any]], click.Command]:
    """As `click.command`, for a command of this program."""
    return click.command(name, **({"cls": Verb} | attributes))


class HelpText(click.HelpFormatter):
    """Help in which no word is cut: `tensorrt-rtx` stays in one line, and long commands continue in the next one."""

    def write_text(self, text: str) -> None:
        """Write a paragraph; one that begins with the sign for examples keeps its lines."""
        if text.startswith(EXAMPLES):
            width = self.width - self.current_indent
            text = "\n".join(part for line in text.split("\n") for part in _continued(line, width))
        super().write_text(text.replace("-", TIED_HYPHEN))

    def write_dl(self, rows: Iterable[tuple[str, str]], *layout: int, **more: int) -> None:
        """Write a list of names and descriptions."""
        super().write_dl([(name, meaning.replace("-", TIED_HYPHEN)) for name, meaning in rows], *layout, **more)

    def getvalue(self) -> str:
        """The help, with ordinary hyphens."""
        return super().getvalue().replace(TIED_HYPHEN, "-")


def _continued(line: str, width: int) -> list[str]:
    """Break a line that is too long: a command, which is indented, by backslashes between its options."""
    if "   " in line.strip():  # columns
        return [line]
    indent, end = ("      ", " \\") if line.startswith("  ") else ("", "")
    parts = [""]
    for word in OPTIONS.findall(line) if indent else re.findall(r"\s*\S+", line):
        if parts[-1] and len(parts[-1]) + len(word) + len(end) > width:
            parts[-1] += end
            parts.append(indent + word.lstrip())
        else:
            parts[-1] += word
    return parts


click.Context.formatter_class = HelpText


class Verb(click.Command):
    """A command with -q and -v, whose help lists its options in groups."""

    def __init__(self, *arguments: Any, **attributes: Any):
        """Add the options that every command has."""
        super().__init__(*arguments, **attributes)
        self.params += [
            _verbosity("-q", "--quiet", Verbosity.QUIET, "Print results and errors only."),
            _verbosity("-v", "--verbose", Verbosity.VERBOSE, "Print everything, and how long each step takes."),
        ]

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the command's text, and that its bundles may be at addresses."""
        super().format_help_text(ctx, formatter)
        bundles = [each for each in self.get_params(ctx) if isinstance(each.type, BundleToRead | BundleToWrite)]
        if bundles:
            names = [
                each.human_readable_name if isinstance(each, click.Argument) else each.opts[-1] for each in bundles
            ]
            with formatter.indentation():
                formatter.write_paragraph()
                formatter.write_text(f"{' and '.join(names)}: a folder, or an address such as s3://models/llama.")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a section for each group of options: those without a group first, those of the output last."""
        sections: dict[str, list[tuple[str, str]]] = {"Options": []}
        output: list[tuple[str, str]] = []
        for parameter in self.get_params(ctx):
            title = getattr(parameter, GROUP, OUTPUT if parameter is self.get_help_option(ctx) else "Options")
            if isinstance(parameter, click.Option) and (record := parameter.get_help_record(ctx)) is not None:
                (output if title == OUTPUT else sections.setdefault(title, [])).append(record)
        for title, records in [*sections.items(), (OUTPUT, output)]:
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse as click does; name the right option, or its command, for an option that does not exist."""
        set_verbosity(Verbosity.NORMAL)
        with _explained(ctx):
            return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; with --verbose, say how long it took."""
        with timed(f"{ctx.command_path}, in all"):
            return super().invoke(ctx)


class VerbGroup(click.Group):
    """A command with commands of its own, which names the nearest for one that does not exist."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse as click does, and name the command that has an option."""
        with _explained(ctx):
            return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command as click does, or name the nearest one of this group and the groups in it."""
        try:
            return super().resolve_command(ctx, args)
        except click.exceptions.NoSuchCommand as error:
            known = [path for path, _ in commands(self, ctx)] + self.list_commands(ctx)
            by_end = {path.rpartition(" ")[2]: path for path in known}
            found = by_end.get(nearest(args[0], by_end) or "")
            hint = f" Did you mean {found!r}?" if found else ""
            raise click.UsageError(f"No such command {args[0]!r}.{hint}", ctx) from error


def commands(group: click.Group, ctx: click.Context) -> Iterator[tuple[str, click.Command]]:
    """Yield each command below `group` with its name, such as "train prune"."""
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        if isinstance(command, click.Group):
            yield from ((f"{name} {below}", each) for below, each in commands(command, ctx))
        elif command is not None:
            yield name, command


def _verbosity(short: str, long: str, level: Verbosity, meaning: str) -> click.Option:
    """The flag that sets `level`; of several flags the last one counts.

    It is eager, as a bundle is fetched from an address while the arguments are read.
    """

    def use(ctx: click.Context, parameter: click.Parameter, given: bool) -> None:
        if given:
            set_verbosity(level)

    option = click.Option([short, long], is_flag=True, expose_value=False, is_eager=True, callback=use, help=meaning)
    setattr(option, GROUP, OUTPUT)
    return option


@contextmanager
def _explained(ctx: click.Context) -> Iterator[None]:
    """Add to an error its command, and to that about an option that does not exist what may have been meant."""
    try:
        yield
    except click.NoSuchOption as error:
        name = error.option_name
        raise click.UsageError(f"No such option {name!r}.{_meant(name, ctx)}", ctx) from error
    except click.UsageError as error:
        error.ctx = error.ctx or ctx  # click's parser leaves it out
        raise


def _meant(name: str, ctx: click.Context) -> str:
    """The commands that have this option; else the nearest option of this command, or of another."""
    root = ctx.find_root().command
    others = dict(commands(root, ctx)) if isinstance(root, click.Group) else {}
    if having := [f"`{path}`" for path, command in others.items() if name in _names(command)]:
        more = f" and {len(having) - NAMED} more" if len(having) > NAMED else ""
        return f" It is an option of {', '.join(having[:NAMED])}{more}."
    known = {option: f" of `{path}`" for path, command in others.items() for option in _names(command)}
    known |= dict.fromkeys(_names(ctx.command), "")
    found = nearest(name, known)
    return "" if found is None else f" Did you mean {found!r}{known[found]}?"


def _names(command: click.Command) -> list[str]:
    """The options of a command, such as "--json" and "-o"."""
    options = [each for each in command.params if isinstance(each, click.Option) and not each.hidden]
    return [name for option in options for name in (*option.opts, *option.secondary_opts)]
