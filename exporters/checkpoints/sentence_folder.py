"""The folder of a sentence-transformers model: modules.json lists its modules, each with a folder of its own.

Newer versions of the library save the Transformer in the root, older ones in a folder such as `0_Transformer`. A Router
in its place has several lists of modules, by route: one for queries and one for documents, for example.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from intaglio.errors import BundleError, SourceError, one_line
from intaglio.files.hashes import inside
from intaglio.files.input_files import read_text

MODULES = "modules.json"
MAX_BYTES = 1 << 20  # of modules.json; real ones have a few hundred
LIBRARY = "sentence_transformers."
TRANSFORMER = "Transformer"
MASKED = "MLMTransformer"  # the same with its head for masked tokens, as older versions name it
ROUTER = "Router"
ROUTES = ("router_config.json", "config.json")  # the latter of older versions

Listed = TypeVar("Listed")


class Module(msgspec.Struct):
    """One line of modules.json."""

    type: str
    path: str
    name: str = ""

    @property
    def kind(self) -> str:
        """The class of the library, such as "Pooling"; for a class from elsewhere its whole path."""
        return self.type.rpartition(".")[2] if self.type.startswith(LIBRARY) else self.type


class Routes(msgspec.Struct):
    """What a Router saves: the modules of each route, by the names of their folders in its own."""

    types: dict[str, str]
    structure: dict[str, list[str]]


def read_modules(root: Path, route: str | None = None) -> tuple[Module, ...]:
    """The modules of the folder `root` in order; none if it is not from sentence-transformers.

    Those of a Router are the modules of `route`. Raises `SourceError` for a damaged list, for a route that is not
    there, and without a `route` if there are several.
    """
    file = root / MODULES
    if not file.is_file():
        modules = []
    elif not (modules := _decoded(file, list[Module])):
        raise SourceError(f"{file}: lists no modules, expected Transformer and Pooling. Download or copy it again.")
    names = [module.name for module in modules if module.name]
    if repeated := [name for name in names if names.count(name) > 1]:
        raise SourceError(f"{file}: two modules are named {repeated[0]!r}. Give each a name of its own.")
    if modules and modules[0].kind == ROUTER:
        return (*_of_route(root, modules[0], route), *modules[1:])
    if route is not None:
        raise SourceError(f"{root}: has no routes, given --route {route}. Leave it out.")
    return tuple(modules)


def _of_route(root: Path, router: Module, route: str | None) -> list[Module]:
    """The modules of a route of `router`."""
    folder = module_folder(root, router)
    file = next((folder / name for name in ROUTES if (folder / name).is_file()), folder / ROUTES[0])
    routes = _decoded(file, Routes)
    if route is None and len(routes.structure) == 1:
        (route,) = routes.structure
    if route is None or route not in routes.structure:
        given = "given none" if route is None else f"given {route!r}"
        raise SourceError(f"{file}: has the routes {', '.join(routes.structure)}, {given}. Choose one with --route.")
    if unknown := [name for name in routes.structure[route] if name not in routes.types]:
        raise SourceError(f"{file}: route {route} has a module {unknown[0]!r} without a type. Copy the file again.")
    if not routes.structure[route]:
        raise SourceError(f"{file}: route {route} has no modules. Choose another one with --route.")
    prefix = "" if router.path in ("", ".") else f"{router.path}/"
    return [Module(routes.types[name], prefix + name) for name in routes.structure[route]]


def _decoded(file: Path, kind: type[Listed]) -> Listed:
    """A file of JSON. Raises `SourceError`."""
    if file.is_file() and (size := file.stat().st_size) > MAX_BYTES:
        raise SourceError(f"{file}: {size} bytes, expected at most {MAX_BYTES}. Download or copy the file again.")
    text = read_text(file, error=SourceError, fix="Download or copy it again.")
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise SourceError(f"{file}: damaged ({one_line(error)}). Download or copy the file again.") from error


def transformer_folder(root: Path, modules: Sequence[Module]) -> Path:
    """The folder of the Transformer, with config.json, weights and tokenizer: `root`, or a folder in it.

    Raises `SourceError` if the first one of `modules` is another one, such as StaticEmbedding.
    """
    if not modules:
        return root
    if modules[0].kind not in (TRANSFORMER, MASKED):
        raise SourceError(
            f"{root / MODULES}: the first module is {modules[0].kind[:100]}, expected {TRANSFORMER}. Its embeddings "
            "are not supported: choose a model that begins with a Transformer."
        )
    return module_folder(root, modules[0])


def module_folder(root: Path, module: Module) -> Path:
    """The folder of `module`. Raises `SourceError` if it is outside of `root`."""
    try:
        return root if module.path in ("", ".") else inside(root, module.path, str(root / MODULES))
    except BundleError as error:
        raise SourceError(str(error)) from error


def module_files(root: Path, modules: Sequence[Module]) -> list[str]:
    """The files of the modules and the settings that affect embeddings, relative to `root`, without the Transformer's.

    They are JSON and safetensors: the modules after the Transformer have nothing else that is read.
    """
    if not modules:
        return []
    first = transformer_folder(root, modules)
    folders = dict.fromkeys(module_folder(root, module) for module in modules)
    others = [
        folder for folder in folders if folder not in (root, first) and folder.is_dir()
    ]  # Normalize may have none
    found = [path for folder in others for path in sorted(folder.iterdir())]
    router = [root / ROUTES[0], *(first.parent / name for name in ROUTES if root in first.parent.parents)]
    settings = [*first.glob("sentence_*_config.json"), *root.glob("config_sentence_transformers.json"), root / MODULES]
    chosen = [*settings, *router, *(path for path in found if path.suffix in (".json", ".safetensors"))]
    return [path.relative_to(root).as_posix() for path in chosen if path.is_file()]
