"""Names of a package that are imported when they are first asked for, so that to import the package is fast."""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # the module `typing` takes longer to import than all of `intaglio`
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any


def lazy_names(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of the package `package`; `modules`: name -> the module of the package that has it.

    No name may be that of a module in the package: importing that module would set the attribute to the module.
    """

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        from importlib import import_module

        found = getattr(import_module(modules[name], package), name)
        return sys.modules[package].__dict__.setdefault(name, found)

    return get
