"""Text that comes with every Python: the reference manual's topics, and the standard library's docstrings or sources.

Sources are parsed, never imported. A long paragraph stands in the whole text once, and a topic, or a module with all
its submodules, is either for training or held out.
"""

from __future__ import annotations

import ast
import hashlib
import sys
import sysconfig
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics

HELD_OUT = 20 / 256  # of the subjects
SPLIT = 29  # of all such splits one with many different subjects held out, none of them a quarter of the text
SHORT = 60  # characters; a shorter paragraph, such as "See also:", may stand in many places
SHORTEST_DOCUMENT = 300  # characters
TEST_FOLDERS = {"test", "tests", "idle_test"}
# The manual is read through topics(); the character tables' docstrings are all alike.
OTHER_MODULES = {"encodings", "pydoc_data"}


@dataclass(frozen=True)
class Document:
    """A text that stands for itself. Those of one `subject` are never split between training and held-out text."""

    subject: str
    name: str
    text: str


@dataclass(frozen=True)
class Section:
    """A part of a document: a heading, empty for a part without one, and the paragraphs below it."""

    heading: str
    paragraphs: tuple[str, ...]


Sections = tuple[Section, ...]


def documents(sources: bool = False) -> list[Document]:
    """Every document, without repetitions, in an order that depends on the names and lengths alone.

    `sources`: of a module the whole source, ten times as much text, instead of its docstrings.
    """
    seen: set[str] = set()
    found = []
    for subject, name, sections in [*_topics(), *_modules(Path(sysconfig.get_paths()["stdlib"]), sources)]:
        text = "\n\n".join(_text(section) for section in _without_repetitions(sections, seen))
        if len(text) >= SHORTEST_DOCUMENT:
            found.append(Document(subject, name, text))
    return found


def is_held_out(subject: str) -> bool:
    """Whether the documents of a subject are kept from training; a matter of its name only."""
    return hashlib.sha256(f"{SPLIT} {subject}".encode()).digest()[0] / 256 < HELD_OUT


def _topics() -> list[tuple[str, str, Sections]]:
    """The manual's topics, long ones first: a short one often is a part of a long one."""
    ordered = sorted(topics.items(), key=lambda item: (-len(item[1]), item[0]))
    return [(f"topic {name}", f"topic {name}", (Section("", _paragraphs(text)),)) for name, text in ordered]


def _modules(library: Path, whole: bool = False) -> Iterator[tuple[str, str, Sections]]:
    """The docstrings, or the `whole` source, of every module of the standard library in Python, by path."""
    for path in _sources(library):
        parts = path.relative_to(library).with_suffix("").parts
        try:
            tree = ast.parse(path.read_bytes())
            text = path.read_text(encoding="utf-8") if whole else ""
        except (SyntaxError, ValueError):  # files that are broken on purpose, or in another encoding
            continue
        # _pydecimal, _pyio and the like belong to the module that they implement.
        subject = f"module {parts[0].removeprefix('_py').removeprefix('_')}"
        sections = (Section("", _paragraphs(text)),) if whole else tuple(_docstrings(tree, ""))
        yield subject, f"module {'.'.join(parts).removesuffix('.__init__')}", sections


def _sources(library: Path) -> Iterator[Path]:
    """The files of the standard library, without its tests and without packages installed beside it."""
    for top in sorted(library.iterdir()):
        if top.stem in sys.stdlib_module_names - OTHER_MODULES:
            found = [top] if top.suffix == ".py" else sorted(top.rglob("*.py"))
            yield from (path for path in found if not TEST_FOLDERS.intersection(path.relative_to(library).parts))


def _docstrings(node: ast.AST, prefix: str) -> Iterator[Section]:
    """The docstring of a module, class or function, headed by its definition, then those inside it."""
    if isinstance(node, ast.Module):
        heading = ""
    elif isinstance(node, ast.ClassDef):
        heading = f"class {prefix}{node.name}({', '.join(map(ast.unparse, node.bases))})".removesuffix("()")
        prefix = f"{prefix}{node.name}."
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        heading = f"{prefix}{node.name}({ast.unparse(node.args)})"
        prefix = f"{prefix}{node.name}."
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        yield Section(heading, _paragraphs(ast.get_docstring(node) or ""))
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):  # what can hold a definition
            yield from _docstrings(child, prefix)


def _paragraphs(text: str) -> tuple[str, ...]:
    lines = "\n".join(line.rstrip() for line in text.splitlines())
    return tuple(part.strip("\n") for part in lines.split("\n\n") if part.strip())


def _without_repetitions(sections: Iterable[Section], seen: set[str]) -> Iterator[Section]:
    """The sections less the long paragraphs that are in `seen`, which grows, and less those without a paragraph."""
    for section in sections:
        kept = []
        for paragraph in section.paragraphs:
            words = " ".join(paragraph.split())
            if len(words) < SHORT or words not in seen:
                kept.append(paragraph)
                seen.add(words)
        if kept:
            yield Section(section.heading, tuple(kept))


def _text(section: Section) -> str:
    body = "\n\n".join(section.paragraphs)
    return f"{section.heading}\n{textwrap.indent(body, '    ')}" if section.heading else body
