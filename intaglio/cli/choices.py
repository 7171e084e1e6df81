"""Values of options that have names: a wrong one is answered by the nearest; shells complete them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from intaglio.nearest import did_you_mean
from intaglio.targets import TARGETS

if TYPE_CHECKING:
    Kind = click.ParamType[str]  # generic since click 8.5
else:
    Kind = click.ParamType


class OneOf(Kind):
    """One of some names, in any case.

    `metavar`: shown in the help in place of the names, where they are many; the option's text then lists them.
    """

    name = "name"

    def __init__(self, names: Iterable[str], metavar: str | None = None):
        """Take `names`, in the order in which they are listed."""
        self.names = tuple(names)
        self._metavar = metavar

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """The names between bars."""
        return self._metavar or f"[{'|'.join(self.names)}]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name, or fail with the names, and the nearest of them."""
        known = {name.casefold(): name for name in self.names}
        found = known.get(str(value).casefold())
        if found is None:
            hint = did_you_mean(str(value), self.names)
            self.fail(f"{value!r}: expected one of {', '.join(self.names)}.{hint}", param, ctx)
        return found

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """The names that begin with `incomplete`."""
        return [CompletionItem(name) for name in self.names if name.startswith(incomplete)]


class RecipeName(Kind):
    """The name of a recipe, or a YAML file with one."""

    name = "recipe"

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """The two kinds of values."""
        return "NAME|FILE"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """The recipes that begin with `incomplete`, with what they do; else files, which the shell lists."""
        from intaglio.graph_passes.recipes import RECIPES

        found = [CompletionItem(name, help=each.does) for name, each in RECIPES.items() if name.startswith(incomplete)]
        return found or [CompletionItem(incomplete, type="file")]


TARGET = OneOf(TARGETS)
DTYPE = OneOf(("float32", "float16"))
