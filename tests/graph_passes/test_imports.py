"""The modules of graph_passes import each other in no circle, and in no function, where one could hide."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
VERB = ROOT / "intaglio" / "compression.py"


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    named = parts if parts[0] == "intaglio" else ("intaglio", *parts)
    return ".".join(named).removesuffix(".__init__")


FILES = {module_name(path): path for path in [VERB, *sorted((ROOT / "graph_passes").rglob("*.py"))]}


def running(node: ast.AST) -> Iterator[ast.AST]:
    """All that runs below `node`: not what stands there for type checkers."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            continue
        yield child
        yield from running(child)


def imported(node: ast.AST) -> Iterator[str]:
    for each in running(node):
        if isinstance(each, ast.Import):
            yield from (alias.name for alias in each.names)
        elif isinstance(each, ast.ImportFrom):
            for alias in each.names:
                name = f"{each.module}.{alias.name}"
                yield name if name in FILES else str(each.module)


def test_there_is_no_circle() -> None:
    graph = {name: set(imported(ast.parse(path.read_text()))) & FILES.keys() for name, path in FILES.items()}
    assert graph["intaglio.compression"] > {"intaglio.graph_passes.recipes", "intaglio.graph_passes.run_passes"}
    assert len(list(TopologicalSorter(graph).static_order())) == len(FILES)  # raises CycleError, which names it


@pytest.mark.parametrize("name", FILES)
def test_no_function_imports_a_module_of_ours(name: str) -> None:
    functions = [each for each in ast.walk(ast.parse(FILES[name].read_text())) if isinstance(each, ast.FunctionDef)]
    assert [module for each in functions for module in imported(each) if module.startswith("intaglio")] == []
