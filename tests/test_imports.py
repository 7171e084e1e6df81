"""Imports have no cycles, and only imports of heavy modules are deferred."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from import_graph import PACKAGE, STAGES, ImportGraph, cycles

from intaglio.cli import VERBS
from intaglio.plugins.registry import FOLDERS as OPERATOR_FOLDERS
from intaglio.targets import TARGETS

ROOT = Path(__file__).parent.parent
FOLDERS = (PACKAGE, *STAGES)
# Imports of modules that load a heavy library (torch, ONNX Runtime, ...) may be in a function or only for type
# checkers, to keep the others light. So may those of these files and folders, for the given reason.
DEFERRED = {
    "intaglio/__init__.py": "`import intaglio` is immediate: a verb's stage is imported when the verb is asked for",
    "exporters/__init__.py": "the process that checks a graph runs it without what has made it",
    "runtime/__init__.py": "help texts read the strategies, without what engines are opened and built with",
    "validation/doctor/kernels.py": "`doctor` names a package that is missing, which the kernels' modules import",
    "cli": "`--help`, completion and errors are immediate: a command imports its stage when it is called",
}
# Files that import modules from a table -> the modules in the table, some of which may not exist.
TABLES = {
    "cli/__init__.py": [f"intaglio.cli.{verb.replace('-', '_')}" for verb in VERBS],
    "plugins/registry.py": [f"intaglio.plugins.{folder}.spec" for folder in OPERATOR_FOLDERS],
    "plugins/cuda/launching/launches.py": [f"intaglio.plugins.{folder}.launch" for folder in OPERATOR_FOLDERS],
    "plugins/kernel_check/cases.py": [f"intaglio.plugins.{folder}.gpu_cases" for folder in OPERATOR_FOLDERS],
    "training/integer/operators.py": [f"intaglio.plugins.{folder}.training" for folder in OPERATOR_FOLDERS],
    "runtime/engines/opening.py": [
        f"intaglio.runtime.engines.{place.partition(':')[0]}"
        for target in TARGETS.values()
        for place in (target.opens, target.builds)
        if place
    ],
}
# Files that import a computed name that is not in such a table.
UNFOLLOWED = {
    "intaglio/lazy_names.py": "for packages, in which the same modules stand under TYPE_CHECKING",
    "intaglio/extras.py": "libraries",
    "graph_passes/user/code.py": "the user's own modules",
    "plugins/ort/build.py": "signatures and generated headers, before anything is installed",
}


@pytest.fixture(scope="module")
def graph() -> ImportGraph:
    return ImportGraph(ROOT, FOLDERS, TABLES)


@pytest.fixture(scope="module")
def components(graph: ImportGraph) -> list[list[str]]:
    return cycles(graph.edges())


def excused(path: Path) -> list[str]:
    """The entries of `DEFERRED` that `path`, below the root, is or belongs to."""
    return [entry for entry in DEFERRED if path.is_relative_to(entry)]


@pytest.mark.parametrize("folder", FOLDERS)
def test_imports_have_no_cycle(graph: ImportGraph, components: list[list[str]], folder: str) -> None:
    found = [component for component in components if any(graph.files[name].parts[0] == folder for name in component)]
    described = "\n\n".join(map(graph.described, found))
    assert not found, f"import cycle; move the shared part into its own file:\n{described}"


@pytest.mark.parametrize("folder", FOLDERS)
def test_only_heavy_imports_are_deferred(graph: ImportGraph, folder: str) -> None:
    found = [
        f"  {graph.files[name]}:{each.line} {each.name}"
        for name, each in graph.deferred()
        if graph.files[name].parts[0] == folder and not excused(graph.files[name])
    ]
    listed = "\n".join(found)
    assert not found, f"imports in a function or under TYPE_CHECKING; move them to the top of their files:\n{listed}"


def test_every_exception_is_still_needed(graph: ImportGraph) -> None:
    used = {entry for name, _ in graph.deferred() for entry in excused(graph.files[name])}
    assert used == DEFERRED.keys()


def test_every_dynamic_import_is_resolved_or_has_a_reason(graph: ImportGraph) -> None:
    assert {str(graph.files[name]) for name in graph.computed} == TABLES.keys() | UNFOLLOWED.keys()
    assert all(any(graph.module(name) == name for name in names) for names in TABLES.values())


def write_graph(folder: Path, files: dict[str, str], tables: Mapping[str, list[str]] | None = None) -> ImportGraph:
    """The import graph of a package of these files, by their paths."""
    for path, source in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(source)
    return ImportGraph(folder, sorted({path.partition("/")[0] for path in files}), tables)


@pytest.mark.parametrize(
    "back",
    [
        "import intaglio.runtime.a",
        "from intaglio.runtime.a import first",
        "from intaglio.runtime import a",
        "def second():\n    from intaglio.runtime.a import first\n    return first()",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from intaglio.runtime.a import first",
        "import importlib\n\ndef second():\n    return importlib.import_module('intaglio.runtime.a')",
    ],
)
def test_cycle_is_found_for_every_form_of_import(tmp_path: Path, back: str) -> None:
    graph = write_graph(
        tmp_path,
        {
            "runtime/__init__.py": "from intaglio.runtime.a import first",
            "runtime/a.py": "from intaglio.plugins.b import third\n\ndef first(): ...",
            "plugins/b.py": "from intaglio.plugins import c\n\ndef third(): ...",
            "plugins/c.py": back,
        },
    )
    names = ["intaglio.plugins.b", "intaglio.plugins.c", "intaglio.runtime.a"]
    assert cycles(graph.edges()) == [names]
    line = back[: back.index("runtime")].count("\n") + 1
    assert f"plugins/c.py:{line} imports runtime/a.py" in graph.described(names)
    assert "runtime/__init__.py" not in graph.described(names)


def test_cycle_through_a_table_is_found(tmp_path: Path) -> None:
    files = {
        "runtime/opening.py": "import importlib\n\ndef at(name):\n    return importlib.import_module(f'x.{name}')",
        "runtime/engine.py": "from intaglio.runtime.opening import at",
        "runtime/other_engine.py": "import math",
    }
    named = {"runtime/opening.py": ["intaglio.runtime.engine", "intaglio.runtime.other_engine"]}
    graph = write_graph(tmp_path, files, named)
    names = ["intaglio.runtime.engine", "intaglio.runtime.opening"]
    assert cycles(graph.edges()) == [names]
    assert "runtime/opening.py:4 imports runtime/engine.py" in graph.described(names)
    assert list(graph.deferred()) == []
    assert cycles(write_graph(tmp_path, files).edges()) == []


def test_shared_imports_are_no_cycle(tmp_path: Path) -> None:
    graph = write_graph(
        tmp_path,
        {
            "plugins/a.py": "from intaglio.plugins import b, c",
            "plugins/b.py": "from intaglio.plugins.d import shared",
            "plugins/c.py": "from intaglio.plugins.d import shared",
            "plugins/d.py": "import math\n\nshared = 1",
        },
    )
    assert cycles(graph.edges()) == []


def test_only_heavy_modules_may_be_imported_in_functions(tmp_path: Path) -> None:
    later = "def f():\n    from intaglio.plugins import {name}\n    return {name}"
    graph = write_graph(
        tmp_path,
        {
            "plugins/heavy.py": "import torch.nn",
            "plugins/heavy_by_another.py": "from intaglio.plugins.heavy import nn",
            "plugins/light.py": "def f():\n    import torch\n    return torch",
            "plugins/a.py": later.format(name="heavy"),
            "plugins/b.py": later.format(name="heavy_by_another"),
            "plugins/c.py": later.format(name="light"),
        },
    )
    assert graph.heavy == {"intaglio.plugins.heavy", "intaglio.plugins.heavy_by_another"}
    found = [(name, each.name, each.line) for name, each in graph.deferred()]
    assert found == [("intaglio.plugins.c", "intaglio.plugins.light", 2)]
