"""Vocabularies: words of each kind of token, and invalid files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from intaglio.errors import BundleError
from intaglio.runtime.speech.vocabulary import Vocabulary, read_vocabulary

GOOD: dict[str, Any] = {"tokens": ["<b>", "a", "▁a"], "blank": 0, "word_mark": "▁"}


@pytest.mark.parametrize(
    ("tokens", "mark", "spoken", "text"),
    [
        (["▁the", "s", "▁", "▁cat"], "▁", ["▁the", "▁cat", "s"], "the cats"),
        (["▁the", "s", "▁", "▁cat"], "▁", ["▁", "▁the", "▁", "▁", "s"], "the s"),
        (["a", "b", " "], " ", [" ", "a", "b", " ", " ", "a", " "], "ab a"),
        (["f", "ɔ", "<wb>"], "<wb>", ["f", "ɔ", "<wb>", "f"], "fɔ f"),
        (["▁of▁the", "a▁b", "▁▁"], "▁", ["▁of▁the", "a▁b", "▁▁", "a▁b"], "of thea b a b"),
        (["a", "b"], "▁", ["a", "b", "a"], "aba"),
        (["a", "b"], "▁", [], ""),
    ],
)
def test_words_begin_and_end_at_marks(tokens: list[str], mark: str, spoken: list[str], text: str) -> None:
    vocabulary = Vocabulary([*tokens, "<blank>"], len(tokens), mark)
    assert vocabulary.text(tokens.index(token) for token in spoken) == text


def test_blank_has_no_text() -> None:
    assert Vocabulary(["a", "b", "a"], 2, "▁").text([0, 2, 1]) == "ab"


def test_vocabulary_is_read(tmp_path: Path) -> None:
    (tmp_path / "vocabulary.json").write_text(json.dumps(GOOD))
    vocabulary = read_vocabulary(tmp_path / "vocabulary.json")
    assert (vocabulary.tokens, vocabulary.blank, vocabulary.word_mark) == (("<b>", "a", "▁a"), 0, "▁")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": []}, "0 tokens, expected 2 to 65536"),
        ({"tokens": ["a"]}, "1 tokens"),
        ({"tokens": [str(number) for number in range(70_000)]}, "70000 tokens"),
        ({"tokens": ["a", 5, "b"]}, "Expected `str`, got `int`"),
        ({"tokens": "abc"}, "Expected `array`"),
        ({"tokens": ["<b>", "a", ""]}, "token 2 is ''"),
        ({"tokens": ["<b>", "a", "x" * 300]}, "token 2 is 'xxx"),
        ({"tokens": ["<b>", "a", "line\nbreak"]}, r"token 2 is 'line\\nbreak'"),
        ({"tokens": ["<b>", "a", "\x1b[2J"]}, "token 2 is"),
        ({"tokens": ["<b>", "a", "\u2028"]}, "token 2 is"),
        ({"tokens": ["<b>", "a", "b", "a"]}, "tokens 1 and 3 are both 'a'"),
        ({"blank": 3}, "blank 3, expected 0 to 2"),
        ({"blank": -1}, "blank -1"),
        ({"blank": 0.5}, "Expected `int`"),
        ({"blank": True}, "Expected `int`"),
        ({"word_mark": ""}, "word_mark ''"),
        ({"word_mark": "\n"}, "word_mark"),
        ({"word_mark": None}, "Expected `str`"),
        ({"more": 1}, "unknown field"),
    ],
)
def test_invalid_vocabulary_is_a_one_line_error(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = tmp_path / "vocabulary.json"
    path.write_text(json.dumps(GOOD | change))
    with pytest.raises(BundleError, match=message) as refused:
        read_vocabulary(path)
    assert "\n" not in str(refused.value) and str(path) in str(refused.value)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[" * 100_000, b"[1]", b'{"tokens": ["\xff"]}', b" " * (9 << 20), b"null"]
)
def test_other_files_are_one_line_errors(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "vocabulary.json"
    path.write_bytes(content)
    with pytest.raises(BundleError, match="not a readable vocabulary") as refused:
        read_vocabulary(path)
    assert "\n" not in str(refused.value)


def test_missing_vocabulary_is_a_one_line_error(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="No such file"):
        read_vocabulary(tmp_path / "vocabulary.json")
