"""Prompts from files: lines or windows of a text, none lost or repeated; errors name invalid lines."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_decoders import write_byte_tokenizer
from tokenizers import Tokenizer

from intaglio.errors import UsageError
from intaglio.runtime.generation.requests.prompts import read_examples, read_prompts, read_texts


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_byte_tokenizer(folder)
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def test_windows_are_consecutive_and_drop_a_short_tail(tokenizer: Tokenizer, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("abcdefgh")
    assert read_prompts(tmp_path / "text", "--data", tokenizer, 3) == ["abc", "def"]
    assert read_prompts(tmp_path / "text", "--data", tokenizer, 4) == ["abcd", "efgh"]
    assert read_prompts(tmp_path / "text", "--data", tokenizer, 9) == []


@given(text=st.text(st.characters(codec="utf-8", exclude_characters="{\r\0"), max_size=60), tokens=st.integers(1, 9))
def test_windows_are_substrings_with_multi_token_characters(
    text: str, tokens: int, tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "hypothesis.txt"
    path.write_text(text, encoding="utf-8")
    windows = read_prompts(path, "--data", tokenizer, tokens)
    assert all(window in text and window.strip() for window in windows)
    assert len(windows) == len(set(windows)) <= len(text.encode()) // tokens


def test_duplicate_lines_are_used_once_regardless_of_references(tokenizer: Tokenizer, tmp_path: Path) -> None:
    lines = '\n{"prompt": "a"}\n{"prompt": "b", "reference": "c"}\n\n{"prompt": "a"}\n'
    (tmp_path / "lines").write_text(lines)
    assert read_prompts(tmp_path / "lines", "--data", tokenizer, 2) == ["a", "b"]
    with pytest.raises(UsageError, match="some lines have a reference, some have none"):
        read_examples(tmp_path / "lines", "--data")


def test_texts_are_a_file_or_prompts_with_completions(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("a\nb\n")
    assert read_texts(tmp_path / "text", "--data") == ["a\nb\n"]
    written = '{"prompt": "a", "text": " b", "tokens": [1]}\n{"prompt": "c", "reference": " d"}\n{"prompt": "e"}\n'
    (tmp_path / "lines").write_text(written)
    assert read_texts(tmp_path / "lines", "--data") == ["a b", "c d", "e"]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ('{"prompt": "a"}\n{"prompt": ""}', "--data .*, line 2: the prompt is empty"),
        ('{"prompt": "a"}\n{"prompt', "--data .*, line 2: .* Write"),
        ('{"text": "a"}', "line 1: .*`prompt`"),
        ('{"prompt": "a", "x": ' + "[" * 100_000 + "]" * 100_000 + "}", "line 1: .*recursion.* Write"),
    ],
)
def test_errors_name_invalid_lines(lines: str, message: str, tokenizer: Tokenizer, tmp_path: Path) -> None:
    (tmp_path / "lines").write_text(lines)
    for read in (
        lambda: read_examples(tmp_path / "lines", "--data"),
        lambda: read_prompts(tmp_path / "lines", "--data", tokenizer, 2),
        lambda: read_texts(tmp_path / "lines", "--data"),
    ):
        with pytest.raises(UsageError, match=message) as raised:
            read()  # type: ignore[no-untyped-call]
        assert "\n" not in str(raised.value)
