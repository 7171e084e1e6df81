"""Imports of operator files: signatures need only the standard library, none import torch, no cycles."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter

import pytest

from intaglio.plugins import registry
from intaglio.plugins.cuda.launching.geometry import PLUGINS
from intaglio.plugins.cuda.launching.launches import operators

# They load onnx_ir, which takes longer than a complete engine, and bodies are only written when a graph is changed.
FOR_TYPES = {"intaglio.plugins.function_body", "intaglio.plugins.body_arithmetic"}
FILES = {
    ".".join(("intaglio.plugins", *path.relative_to(PLUGINS).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in sorted(PLUGINS.rglob("*.py"))
}


def imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def of_file(name: str) -> ast.Module:
    return ast.parse(FILES[name].read_text())


def module_of(name: str) -> str | None:
    """The module of plugins/ that an imported name is or belongs to."""
    return next((each for each in (name, name.rpartition(".")[0]) if each in FILES), None)


def test_operator_files_have_no_import_cycle() -> None:
    graph = {name: {module_of(each) for each in imported(of_file(name))} - {name, None} for name in FILES}
    for table, file, folders in (
        ("registry", "spec", registry.FOLDERS),
        ("cuda.launching.launches", "launch", operators()),
    ):
        found = {f"intaglio.plugins.{folder}.{file}" for folder in folders}
        assert found <= set(FILES)
        graph[f"intaglio.plugins.{table}"] |= found
    assert len(list(TopologicalSorter(graph).static_order())) == len(FILES)


@pytest.mark.parametrize("name", FILES)
def test_own_modules_are_imported_at_the_top_and_torch_only_for_typing(name: str) -> None:
    tree = of_file(name)
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    within = [each for function in functions for each in imported(function)]
    assert not [each for each in within if module_of(each)]
    blocks = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    for_types = [each for block in blocks for each in imported(block)]
    assert {module_of(each) for each in for_types} - {None} <= FOR_TYPES
    assert not [each for each in set(imported(tree)) - set(for_types) if each.partition(".")[0] == "torch"]


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith(".signature")])
def test_signatures_need_only_the_standard_library(name: str) -> None:
    for each in imported(of_file(name)):
        assert each.partition(".")[0] in sys.stdlib_module_names or str(module_of(each)).endswith(".signature"), each
