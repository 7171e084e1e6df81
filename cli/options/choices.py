"""Values of options: paths, and names, of which a wrong one is answered by the nearest; shells complete them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from intaglio.display.nearest import did_you_mean
from intaglio.storage.address import check_local, is_address
from intaglio.targets import TARGETS

if TYPE_CHECKING:  # generic since click 8.2 and 8.5
    Choice = click.Choice[str]
    Kind = click.ParamType[str]
else:
    Choice, Kind = click.Choice, click.ParamType


class OneOf(Choice):
    """One of some names, in any case.

    `metavar`: shown in the help in place of the names, where they are many; the option's text then lists them.
    """

    def __init__(self, names: Iterable[str], metavar: str | None = None):
        """Take `names`, in the order in which they are listed."""
        super().__init__(tuple(names), case_sensitive=False)
        self._metavar = metavar

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str | None:
        """The names between bars."""
        return self._metavar or super().get_metavar(param, ctx)

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        """The names, and the nearest of them."""
        return f"{value!r}: expected one of {', '.join(self.choices)}.{did_you_mean(str(value), self.choices)}"


class RecipeName(Kind):
    """The name of a recipe, or a YAML file with one."""

    name = "recipe"

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """The two kinds of values."""
        return "NAME|FILE"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """The recipes that begin with `incomplete`, with their summaries; else files, which the shell lists."""
        from intaglio.graph_passes.recipes.recipes import RECIPES

        found = [CompletionItem(name, help=each.does) for name, each in RECIPES.items() if name.startswith(incomplete)]
        return found or [CompletionItem(incomplete, type="file")]


class LocalPath(click.Path):
    """A path of this machine; an address, such as s3://models/llama, is refused by name."""

    def __init__(self) -> None:
        """Paths need not exist: the function that reads or writes one says what is wrong with it."""
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The value as a `Path`."""
        check_local(value, f"{param.get_error_hint(ctx)}: {value}" if param else str(value))
        return super().convert(value, param, ctx)


class BundleToRead(click.Path):
    """A bundle that a command reads: its path, or its address, from where it is fetched to the local cache."""

    def __init__(self) -> None:
        """A bundle that does not exist is reported when it is opened."""
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The local path, as a `Path`."""
        if not is_address(value) or (ctx is not None and ctx.resilient_parsing):
            return Path(value)
        from intaglio.storage.fetch import fetch

        return fetch(value)


class BundleOrName(Kind):
    """A bundle, as `BundleToRead`, or something else that has a name, unchanged."""

    name = "bundle"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The local path of a bundle at an address; else the text."""
        return str(BUNDLE.convert(value, param, ctx)) if is_address(value) else str(value)


class BundleToWrite(LocalPath):
    """A bundle that a command makes or adds to: its path, or its address, to which it is uploaded."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path as a `Path`, the address as a text."""
        return value if is_address(value) else super().convert(value, param, ctx)


PATH = LocalPath()
BUNDLE = BundleToRead()
BUNDLE_OR_NAME = BundleOrName()
BUNDLE_TO_WRITE = BundleToWrite()
TARGET = OneOf(TARGETS)
DTYPE = OneOf(("float32", "float16"))
