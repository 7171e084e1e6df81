"""The English text of the Python distribution: sources, and no overlap of training and held-out text."""

from __future__ import annotations

import shutil
import sys
import sysconfig
from pathlib import Path

import pytest
import python_text
from hypothesis import given
from hypothesis import strategies as st
from python_text import SHORT, Document, Section

SOURCE = '''"""The module's own text."""
import module_that_does_not_exist

class Outer(Base, metaclass=Meta):
    """A class."""

    def method(self, first, *rest, key=1):
        """A method."""

        def inner():
            """An inner function."""

    def silent(self):
        pass

async def coroutine():
    """A coroutine."""
'''

PARAGRAPHS = st.text("ab \n", max_size=3 * SHORT)
SECTIONS = st.builds(Section, st.text("ab", max_size=3), st.lists(PARAGRAPHS, max_size=6).map(tuple))


@pytest.fixture(scope="module")
def found() -> list[Document]:
    return python_text.documents()


@pytest.fixture
def few_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Document]:
    """The manual, and two packages of the library."""
    library = Path(sysconfig.get_paths()["stdlib"])
    for name in ("argparse.py", "typing.py"):
        shutil.copy(library / name, tmp_path)
    shutil.copytree(library / "email", tmp_path / "email")
    (tmp_path / "numpy").mkdir()
    (tmp_path / "numpy" / "__init__.py").write_text(SOURCE * 100)
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})
    return python_text.documents()


def test_manual_and_some_modules_are_found(few_found: list[Document]) -> None:
    names = {document.name for document in few_found}
    assert {"topic string-methods", "module argparse", "module email.message", "module typing"} <= names
    assert sum(len(document.text) for document in few_found) > 300_000
    check_installed_packages(few_found)
    check_held_out(few_found)


@pytest.mark.proof
def test_manual_and_library_are_found(found: list[Document]) -> None:
    names = {document.name for document in found}
    assert {"topic string-methods", "module argparse", "module email.message", "module collections"} <= names
    assert sum(len(document.text) for document in found) > 1_000_000
    assert not any("test" in document.name.split(".") or "idle_test" in document.name for document in found)


@pytest.mark.proof
def test_installed_packages_are_excluded(found: list[Document]) -> None:
    check_installed_packages(found)


def check_installed_packages(found: list[Document]) -> None:
    tops = {document.name.split()[1].split(".")[0] for document in found if document.name.startswith("module ")}
    assert tops <= sys.stdlib_module_names


@pytest.mark.proof
def test_training_and_held_out_subjects_are_disjoint(found: list[Document]) -> None:
    held_out, training = check_held_out(found)
    assert len(held_out) >= 10
    assert len(training) >= 100


def check_held_out(found: list[Document]) -> tuple[set[str], set[str]]:
    """No module is in both parts; return the subjects of each."""
    held_out = {document.subject for document in found if python_text.is_held_out(document.subject)}
    training = {document.subject for document in found} - held_out
    modules = {document.name.split()[1].split(".")[0] for document in found if document.subject in held_out}
    assert held_out and training
    assert not modules & {document.name.split()[1].split(".")[0] for document in found if document.subject in training}
    return held_out, training


@pytest.mark.proof
def test_long_held_out_paragraphs_are_not_trained_on(found: list[Document]) -> None:
    parts: dict[bool, set[str]] = {True: set(), False: set()}
    for document in found:
        words = {" ".join(text.split()) for text in document.text.split("\n\n")}
        parts[python_text.is_held_out(document.subject)] |= {text for text in words if len(text) >= 2 * SHORT}
    assert len(parts[True]) > 100
    assert not parts[True] & parts[False]


def test_split_depends_on_names_alone() -> None:
    assert python_text.is_held_out("topic string-methods")
    assert python_text.is_held_out("module argparse")
    assert not python_text.is_held_out("topic specialnames")
    assert not python_text.is_held_out("module typing")


def test_sources_are_never_executed(tmp_path: Path) -> None:
    (tmp_path / "json").mkdir()
    (tmp_path / "json" / "__init__.py").write_text(SOURCE)
    (tmp_path / "_pydecimal.py").write_text('"""Another."""')
    (tmp_path / "not_of_the_library.py").write_text('"""Not taken."""')
    (tmp_path / "textwrap.py").write_text("this is no Python\n")
    (tmp_path / "unittest" / "test").mkdir(parents=True)
    (tmp_path / "unittest" / "test" / "case.py").write_text('"""Not taken."""')

    decimal, json = python_text._modules(tmp_path)

    assert decimal[:2] == ("module decimal", "module _pydecimal")
    assert json[:2] == ("module json", "module json")
    assert [(section.heading, section.paragraphs) for section in json[2] if section.paragraphs] == [
        ("", ("The module's own text.",)),
        ("class Outer(Base)", ("A class.",)),
        ("Outer.method(self, first, *rest, key=1)", ("A method.",)),
        ("Outer.method.inner()", ("An inner function.",)),
        ("coroutine()", ("A coroutine.",)),
    ]


def test_complete_sources_are_unchanged(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text('"""A module."""\n\n\nx = 1  # é\n', encoding="utf-8")
    (tmp_path / "textwrap.py").write_bytes(b"# -*- coding: latin-1 -*-\nx = '\xe9'\n")  # not suitable for training

    (module,) = python_text._modules(tmp_path, whole=True)

    assert [section.paragraphs for section in module[2]] == [('"""A module."""', "x = 1  # é")]


@given(st.lists(st.lists(SECTIONS, max_size=4), max_size=4))
def test_only_long_paragraphs_are_deduplicated(documents: list[list[Section]]) -> None:
    seen: set[str] = set()
    kept = [section for sections in documents for section in python_text._without_repetitions(sections, seen)]

    def words(sections: list[Section]) -> list[str]:
        return [" ".join(paragraph.split()) for section in sections for paragraph in section.paragraphs]

    before, after = words([section for sections in documents for section in sections]), words(kept)
    long = [text for text in after if len(text) >= SHORT]
    assert sorted(long) == sorted({text for text in before if len(text) >= SHORT})
    assert [text for text in after if len(text) < SHORT] == [text for text in before if len(text) < SHORT]
    assert all(section.paragraphs for section in kept)
