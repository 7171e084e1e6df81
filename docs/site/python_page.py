"""The page of the Python API: every public name, for mkdocstrings to write its docstring there."""

from __future__ import annotations

import importlib
import types
from collections.abc import Iterator

# The modules with public names, in the order of the page, and what each is for.
MODULES = {
    "intaglio": "A function for each verb, the classes that they return, the errors.",
    "intaglio.training": "The verbs of `intaglio train`.",
    "intaglio.deploy": "The verbs of `intaglio deploy`.",
    "intaglio.runtime": "What agents, conversations and tool calls of your own are made of.",
    "intaglio.exporters": "The checkpoint of a bundle, as a module of PyTorch.",
    "intaglio.plugins": "The custom operators, by their names.",
    "intaglio.plugins.ort": "The library of these operators, for ONNX Runtime.",
}


def python() -> str:
    """The page; a name that several modules have is where it comes first."""
    parts = ["# Python\n\nThe public names, by the module to import them from. Modules inside are not public.\n"]
    written: list[object] = []
    for module, purpose in MODULES.items():
        groups: dict[str, list[str]] = {"Functions": [], "Classes": [], "Errors": [], "Constants": []}
        for name, thing in public(module):
            if not any(thing is each for each in written):
                written.append(thing)
                groups[kind(thing)].append(name)
        parts.append(f"## {module}\n\n{purpose}\n")
        for title, names in groups.items():
            if names:
                parts.append(f"### {title}\n")
                parts += [f"::: {module}.{name}\n    options: {{heading_level: 4}}\n" for name in names]
    return "\n".join(parts)


def public(module: str) -> Iterator[tuple[str, object]]:
    """The public names of a module, with what they name."""
    source = importlib.import_module(module)
    for name in getattr(source, "__all__", dir(source)):
        thing = getattr(source, name)
        ours = hasattr(source, "__all__") or getattr(thing, "__module__", "").startswith(module)
        if not name.startswith("_") and ours and not isinstance(thing, types.ModuleType):
            yield name, thing


def kind(thing: object) -> str:
    """The group that a name belongs to."""
    if isinstance(thing, type):
        return "Errors" if issubclass(thing, Exception) else "Classes"
    return "Functions" if callable(thing) else "Constants"
