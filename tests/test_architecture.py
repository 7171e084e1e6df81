"""The rooms of the house: few files in each, no way back up in the runtime; docs/architecture.md as it stands."""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from collections import Counter
from pathlib import Path

import pytest
from architecture_picture import floors, imports, picture, rooms_imported, stages_imported
from import_graph import PACKAGE, ImportGraph, cycles

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
MOST_FILES = 20
# Names of classes that a stage has several times, with the reason.
SAME_CLASSES = {"TritonPythonModel": "Triton looks for this name in each of its models"}


@pytest.fixture(scope="module")
def graph() -> ImportGraph:
    return imports(ROOT)


def test_folders_have_few_files() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    counts = Counter(str(Path(path).parent) for path in listed)
    assert sum(counts.values()) > 1000
    many = {folder for folder, count in counts.items() if count > MOST_FILES}
    assert not many, "more than 20 files: look for a second subject"


@pytest.mark.parametrize(("stage", "rooms"), [("runtime", 15), ("exporters", 6)])
def test_stage_has_no_import_back_up(graph: ImportGraph, stage: str, rooms: int) -> None:
    folders: dict[str, set[str]] = {}
    for name, modules in graph.edges().items():
        here = graph.files[name].parent
        if here.parts[0] == stage:
            there = {graph.files[module].parent for module in modules} - {here}
            folders.setdefault(str(here), set()).update(str(each) for each in there if each.parts[0] == stage)
    assert len(folders) > rooms
    assert not cycles(folders)


def test_shared_files_are_used_by_several_stages(graph: ImportGraph) -> None:
    """A file beside the rooms of `intaglio/` that one stage alone imports belongs to that stage."""
    users: dict[str, set[str]] = {}
    for name, modules in graph.edges().items():
        for module in modules:
            users.setdefault(module, set()).add(graph.files[name].parts[0])
    loose = [name for name, path in graph.files.items() if path.parent == Path("intaglio") and path.stem[0] != "_"]
    assert len(loose) > 5
    assert not {name for name in loose if len(users.get(name, ())) == 1 and PACKAGE not in users[name]}


def test_class_names_are_unique_in_a_stage(graph: ImportGraph) -> None:
    counts: Counter[tuple[str, str]] = Counter()
    for path in graph.files.values():
        for each in ast.parse((ROOT / path).read_text(encoding="utf-8")).body:
            if isinstance(each, ast.ClassDef) and not each.name.startswith("_"):
                counts[path.parts[0], each.name] += 1
    assert len(counts) > 500
    assert {name for (_, name), count in counts.items() if count > 1} == SAME_CLASSES.keys()


def test_picture_shows_the_imports(graph: ImportGraph) -> None:
    assert (ROOT / "docs" / "pictures" / "architecture.svg").read_text(encoding="utf-8") == picture()
    drawn = floors({stage: used if stage != PACKAGE else set() for stage, used in stages_imported(graph).items()})
    assert [drawn[0], *drawn[-3:]] == [["cli"], ["runtime"], ["plugins"], [PACKAGE]]
    assert rooms_imported(graph, "runtime")["strategies"] == {"sampling", "sessions"}


def test_named_files_exist() -> None:
    names = set(re.findall(r"`([a-z_]+(?:/[\w*]+)*/(?:\w+\.py)?)`", PAGE))
    assert len(names) > 20
    assert not [name for name in names if "*" not in name and not (ROOT / name).exists()]


def test_names_on_the_path_of_the_tests_are_unique() -> None:
    """Otherwise a test imports whichever folder comes first."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    folders = settings["tool"]["pytest"]["ini_options"]["pythonpath"]
    names = Counter(path.stem for folder in folders for path in (ROOT / folder).glob("*.py"))
    assert len(names) > 60
    assert not [name for name, count in names.items() if count > 1]
