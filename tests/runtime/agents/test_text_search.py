"""The tool `search` over small, large, and hostile folders."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from intaglio.errors import UsageError
from intaglio.runtime.agents.toolbox import text_search
from intaglio.runtime.agents.toolbox.text_search import TextIndex, passages, search_tool
from intaglio.runtime.agents.tools.tool import ToolError

MONT_BLANC = "Mont Blanc is the highest mountain of the Alps. Its summit is 4806 metres above sea level."
LAKE = "Lake Geneva is shared by Switzerland and France. Geneva and Lausanne lie on its shore."


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "texts" / "deep").mkdir(parents=True)
    (tmp_path / "texts" / "mountains.md").write_text(f"# Mountains\n\n{MONT_BLANC}\n")
    (tmp_path / "texts" / "deep" / "lakes.txt").write_text(LAKE)
    for city in ("Vienna", "Prague", "Rome", "Madrid"):  # the index weighs words by how few passages have them
        (tmp_path / "texts" / f"{city}.txt").write_text(f"{city} is one of the capitals of the countries of Europe.")
    (tmp_path / "texts" / "image.png").write_text("mountain mountain mountain")
    return tmp_path / "texts"


def searching(folder: Path) -> Callable[..., Any]:
    return search_tool(TextIndex(folder)).function


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TextIndex]:
    path = tmp_path_factory.mktemp("texts")
    (path / "a.txt").write_text("AND or NOT near the column text")
    index = TextIndex(path)
    yield index
    index.close()


def test_best_passage_is_first_with_its_file(folder: Path) -> None:
    search = searching(folder)
    assert search(query="How high is the highest mountain?", limit=1) == f"[mountains.md] # Mountains\n{MONT_BLANC}"
    assert search(query="the lakes of Switzerland").startswith(f"[deep/lakes.txt] {LAKE}")
    assert search(query="volcano") == "no passage has any word of 'volcano'"


@given(st.text(st.characters(exclude_categories=()), max_size=80) | st.text('"*^:+-(){} ANDORNEAT,1\0', max_size=40))
@settings(deadline=None)
def test_any_query_is_accepted(index: TextIndex, query: str) -> None:
    assert len(index.find(query, 3)) <= 1


@pytest.mark.parametrize(
    "query", ['"', "AND", "text:", "file:x", "NEAR(a b)", "a*", "^a", "-", "x" * 10**5, "a b " * 10**5]
)
def test_query_syntax_is_plain_words(index: TextIndex, query: str) -> None:
    index.find(query, 3)


def test_long_query_uses_its_first_words(index: TextIndex) -> None:
    assert index.find("column " + " ".join(map(str, range(5000))), 1)


def test_links_leaving_the_folder_are_not_followed(folder: Path) -> None:
    secret = folder.parent / "secret"
    secret.mkdir()
    (secret / "key.txt").write_text("password mountain")
    (folder / "key.txt").symlink_to(secret / "key.txt")
    (folder / "secret").symlink_to(secret)
    (folder / "loop").symlink_to(folder)
    (folder / "broken.txt").symlink_to(folder / "nowhere")
    (folder / "circle.txt").symlink_to(folder / "circle.txt")
    assert searching(folder)(query="password") == "no passage has any word of 'password'"


def test_named_pipe_does_not_hang(folder: Path) -> None:
    os.mkfifo(folder / "pipe.txt")
    made: list[TextIndex] = []
    thread = threading.Thread(target=lambda: made.append(TextIndex(folder)), daemon=True)
    thread.start()
    thread.join(10)
    assert made


def test_other_encodings_are_found_and_binaries_are_not(folder: Path) -> None:
    (folder / "latin.txt").write_bytes("volcano na\xefve".encode("latin-1"))
    (folder / "wide.txt").write_bytes("crater".encode("utf-16"))
    (folder / "binary.txt").write_bytes(b"\0\1geyser\0")
    (folder / os.fsdecode(b"caf\xe9.txt")).write_text("espresso")
    search = searching(folder)
    assert search(query="volcano") == "[latin.txt] volcano na\ufffdve"
    assert search(query="crater") == "[wide.txt] crater"
    assert search(query="espresso") == "[caf\ufffd.txt] espresso"
    assert search(query="geyser").startswith("no passage")


def test_huge_file_is_truncated(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_search, "MOST_FILE_BYTES", 1000)
    (folder / "huge.txt").write_text("volcano " + "lava " * 1000 + "geyser")
    search = searching(folder)
    assert search(query="volcano").startswith("[huge.txt]")
    assert search(query="geyser").startswith("no passage")


def test_folder_with_too_much_text_is_rejected(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_search, "MOST_BYTES", 100)
    with pytest.raises(UsageError, match="holds more than"):
        TextIndex(folder)


def test_folder_without_texts_is_rejected(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"no \.rst file in .*Choose a folder"):
        TextIndex(folder, [".rst"])
    with pytest.raises(UsageError, match=r"cannot read the folder .*nowhere: No such file"):
        TextIndex(folder / "nowhere")


def test_threads_search_concurrently(folder: Path) -> None:
    search = searching(folder)
    with ThreadPoolExecutor(16) as threads:
        found = list(threads.map(lambda _: search(query="mountain", limit=1), range(400)))
    assert set(found) == {f"[mountains.md] # Mountains\n{MONT_BLANC}"}


def test_out_of_range_limits_are_rejected(folder: Path) -> None:
    with pytest.raises(ToolError, match="search: limit 0, expected 1 to 20"):
        searching(folder)(query="lake", limit=0)


def test_long_paragraphs_are_split_and_short_ones_joined() -> None:
    text = "# Title\n\n" + "word " * 1000 + "\n\nshort\n\n  \n\nend"
    found = list(passages(text))
    assert found[0].startswith("# Title word") and found[-1] == "short\nend"
    assert all(len(passage) <= text_search.MOST_PASSAGE for passage in found)
    assert " ".join(found).split() == text.split()
