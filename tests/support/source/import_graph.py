"""The imports among the modules of the project, read from their sources."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "intaglio"
STAGES = (
    "plugins",
    "runtime",
    "exporters",
    "graph_passes",
    "serve",
    "deploy",
    "training",
    "validation",
    "cli",
)
# Libraries that load slowly, or are not installed everywhere.
HEAVY = (
    "torch",
    "transformers",
    "onnxruntime",
    "tensorrt",
    "tensorrt_rtx",
    "cuda",
    "onnxscript",
    "onnx_ir",
    "huggingface_hub",
)


@dataclass(frozen=True)
class Import:
    """An import statement: the full name of the imported module, its line, and whether it runs with its module."""

    name: str
    line: int
    at_top: bool  # neither in a function nor only for type checkers


def imports_of(source: str | ast.AST) -> Iterator[Import]:
    """Every import in the source of a module or a part of its tree, including `import_module` of a literal name."""
    by_name = not isinstance(source, str) or "import_module" in source
    yield from _imports(ast.parse(source) if isinstance(source, str) else source, at_top=True, by_name=by_name)


def computed_imports(tree: ast.AST) -> list[int]:
    """The lines on which a module calls `import_module` with a computed name."""
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    return [call.lineno for call in calls if _imports_by_name(call) and _imported_by_name(call) is None]


def _imports(node: ast.AST, at_top: bool, by_name: bool) -> Iterator[Import]:
    """`by_name`: also look into expressions, most of a tree, for calls of `import_module`."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr) and not by_name:
            continue
        if isinstance(child, ast.Import):
            yield from (Import(alias.name, child.lineno, at_top) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, f"line {child.lineno}: a relative import; write the full name"
            yield from (Import(f"{child.module}.{alias.name}", child.lineno, at_top) for alias in child.names)
        elif isinstance(child, ast.Call) and (name := _imported_by_name(child)):
            yield Import(name, child.lineno, at_top)
        yield from _imports(child, at_top and not _is_later(child), by_name)


def _imports_by_name(call: ast.Call) -> bool:
    return (isinstance(call.func, ast.Attribute) and call.func.attr == "import_module") or (
        isinstance(call.func, ast.Name) and call.func.id == "import_module"
    )


def _imported_by_name(call: ast.Call) -> str | None:
    first = call.args[0] if _imports_by_name(call) and call.args else None
    return first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else None


def _is_later(node: ast.AST) -> bool:
    """Whether `node` does not run when the module is imported."""
    if isinstance(node, ast.If):
        return ast.unparse(node.test).split(".")[-1] == "TYPE_CHECKING"
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)


class ImportGraph:
    """The modules of the package by their full names, and the imports among them."""

    def __init__(self, root: Path, folders: Iterable[str], tables: Mapping[str, Iterable[str]] | None = None):
        """`folders` of `root`: that of the package itself, and those installed below it.

        `tables`: for a file that imports computed names, the modules named in its table.
        """
        self.files: dict[str, Path] = {}
        for path in sorted(path for folder in folders for path in (root / folder).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            full = parts if parts[0] == PACKAGE else (PACKAGE, *parts)
            self.files[".".join(full[:-1] if full[-1] == "__init__" else full)] = path.relative_to(root)
        sources = {name: (root / path).read_text() for name, path in self.files.items()}
        self.imports = {name: tuple(imports_of(source)) for name, source in sources.items()}
        calling = {name: ast.parse(source) for name, source in sources.items() if "import_module" in source}
        self.computed = {name: lines for name, tree in calling.items() if (lines := computed_imports(tree))}
        # Module -> its imports through a table, not in `deferred`: such an import cannot be at the top.
        self.by_table = {
            name: tuple(Import(each, line, at_top=False) for each in (tables or {}).get(str(self.files[name]), ()))
            for name, (line, *_) in self.computed.items()
        }
        self.heavy = self._heavy()

    def module(self, name: str) -> str | None:
        """The module that an import of `name` loads: `name` itself or its parent."""
        if name in self.files:
            return name
        parent = name.rpartition(".")[0]
        return parent if parent in self.files else None

    def edges(self) -> dict[str, set[str]]:
        """Module -> all modules that it imports."""
        found = {
            name: {module for each in self._all(name) if (module := self.module(each.name))} for name in self.imports
        }
        return {name: modules - {name} for name, modules in found.items()}

    def described(self, component: Collection[str]) -> str:
        """The imports that form a cycle of modules, one per line."""
        lines = [
            f"  {self.files[name]}:{each.line} imports {self.files[module]}"
            for name in component
            for each in self._all(name)
            if (module := self.module(each.name)) in component and module != name
        ]
        return "\n".join(dict.fromkeys(lines))

    def deferred(self) -> Iterator[tuple[str, Import]]:
        """Module -> a deferred import of a module that is not heavy."""
        for name, imports in self.imports.items():
            for each in imports:
                module = self.module(each.name)
                if not each.at_top and module not in {None, name, *self.heavy}:
                    yield name, each

    def _all(self, name: str) -> tuple[Import, ...]:
        return self.imports[name] + self.by_table.get(name, ())

    def _heavy(self) -> set[str]:
        """The modules that load a heavy library when they are imported, directly or indirectly."""
        at_top = {name: [each.name for each in imports if each.at_top] for name, imports in self.imports.items()}
        heavy = {name for name, names in at_top.items() if any(each.split(".")[0] in HEAVY for each in names)}
        while more := {
            name for name, names in at_top.items() if name not in heavy and heavy & set(map(self.module, names))
        }:
            heavy |= more
        return heavy


def cycles(edges: Mapping[str, set[str]]) -> list[list[str]]:
    """Import cycles: every strongly connected component of more than one module."""
    closures = {name: reached(edges, name) for name in edges}
    components = {frozenset(other for other in closures[name] if name in closures[other]) for name in edges}
    return sorted(sorted(component) for component in components if len(component) > 1)


def reached(edges: Mapping[str, set[str]], start: str) -> set[str]:
    """The modules that `start` imports directly or indirectly, including `start` if it is in a cycle."""
    found: set[str] = set()
    waiting = set(edges[start])
    while waiting:
        found |= waiting
        waiting = set().union(*(edges[name] for name in waiting)) - found
    return found
