"""Tokenizers that break the library, and hostile texts, give one-line errors."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from intaglio.errors import BundleError, UsageError
from intaglio.runtime.text.tokenizer import LONGEST_WORD, TOKENIZER, Tokenizer, check_words

BROKEN: dict[str, dict[str, Any]] = {
    "loading panics": {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}},
    "encoding panics": {"pre_tokenizer": {"type": "FixedLength", "length": 0}},
    "encoding panics on nothing": {"normalizer": {"type": "Prepend", "prepend": ""}},
    "truncation to nothing": {
        "truncation": {"max_length": 0, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    },
    "truncation beyond all lengths": {
        "truncation": {"max_length": 2**63, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    },
    "encoding fails": {
        "model": {
            "type": "WordPiece",
            "vocab": {"a": 0},
            "unk_token": "none",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
        }
    },
}


@pytest.mark.parametrize("fault", BROKEN)
def test_tokenizer_breaking_the_library_is_a_one_line_error(
    fault: str, tiny_decoder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    content = json.loads((tiny_decoder / TOKENIZER).read_text())
    (tmp_path / TOKENIZER).write_text(json.dumps({**content, **BROKEN[fault]}))
    with pytest.raises(BundleError, match="not a readable tokenizer") as refused:
        Tokenizer(tmp_path / TOKENIZER, ["input_ids"], None)
    assert "\n" not in str(refused.value)
    assert capfd.readouterr().err == ""


def test_huge_padding_is_not_applied(tiny_decoder: Path, tmp_path: Path) -> None:
    content = json.loads((tiny_decoder / TOKENIZER).read_text())
    padding = {"direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0, "pad_token": "x"}
    padding |= {"strategy": {"Fixed": 10**12}}
    (tmp_path / TOKENIZER).write_text(json.dumps({**content, "padding": padding}))
    assert Tokenizer(tmp_path / TOKENIZER, ["input_ids"], None).feeds(["ab"])["input_ids"].shape[1] < 10


@pytest.mark.parametrize("letter", ["a", " ", "\u4e16"])
def test_huge_word_is_rejected(letter: str) -> None:
    other = "b" if letter.isspace() else " "
    check_words(f"{letter * LONGEST_WORD}{other}" * 3)
    with pytest.raises(UsageError, match=f"of {LONGEST_WORD + 1} characters, expected at most"):
        check_words(f"{letter}{other}{letter * (LONGEST_WORD + 1)}{other}{letter}")


@pytest.mark.parametrize("verb", ["validate", "generate", "run"])
def test_file_of_one_giant_word_fails_fast(
    verb: str, tiny_decoder: Path, tiny_bundle: Path, tmp_path: Path, intaglio: Any
) -> None:
    path = tmp_path / "text.txt"
    path.write_text("a" * 20_000_000)
    arguments = {
        "validate": [tiny_decoder, "--perplexity", path],
        "generate": [tiny_decoder, "--file", path],
        "run": [tiny_bundle, "--input", path],
    }[verb]
    start = time.process_time()
    code, _, message = intaglio(verb, *arguments)
    assert code == 2 and "of 20000000 characters" in message
    assert time.process_time() - start < 10
