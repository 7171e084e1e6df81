"""`make lint` rejects the words of tests/vocabulary.txt in identifiers, docstrings and pages."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PLANTED = {
    "an identifier": ("a.py", "def first_WORD(values): ...\n"),
    "a part of a class's name": ("a.py", "class GradientWORD: ...\n"),
    "a docstring": ("a.py", '"""A WORD of values."""\n'),
    "a C++ comment": ("a.cpp", "// the WORD\n"),
    "a page": ("a.md", "# Page\n\nIts WORD.\n"),
}


def lint(folder: Path, name: str, text: str) -> subprocess.CompletedProcess[str]:
    """Run codespell with the project's configuration on one file."""
    pytest.importorskip("codespell_lib", reason="codespell is not installed")
    (folder / "tests").mkdir()
    for each in (".codespellrc", "tests/vocabulary.txt"):
        shutil.copy(ROOT / each, folder / each)
    (folder / name).write_text(text)
    return subprocess.run([sys.executable, "-m", "codespell_lib"], cwd=folder, capture_output=True, text=True)


@pytest.mark.parametrize(("name", "text"), PLANTED.values(), ids=PLANTED)
def test_forbidden_word_is_reported(tmp_path: Path, name: str, text: str) -> None:
    word = (ROOT / "tests" / "vocabulary.txt").read_text().split("->")[0]
    found = lint(tmp_path, name, text.replace("WORD", word.capitalize() if "class" in text else word))
    assert found.returncode != 0 and f"./{name}:" in found.stdout and "==>" in found.stdout


def test_other_words_pass(tmp_path: Path) -> None:
    assert lint(tmp_path, "a.py", "class Consumers: ...\n").returncode == 0
