"""Prompts that are too long: none that fits is refused, and none that cannot fit is tokenized."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from intaglio.bundle import Bundle
from intaglio.errors import UsageError
from intaglio.runtime.generation.generate import TextGenerator
from intaglio.runtime.generation.prompt_reader import PromptLimit, PromptReader
from intaglio.runtime.tokenizer import SHORT_TEXT


def test_a_prompt_of_the_longest_tokens_fits(tiny_decoder: Path) -> None:
    reader = PromptReader(Bundle.open(tiny_decoder))
    longest = max(reader.tokenizer.get_vocab(), key=len)
    count = SHORT_TEXT // len(longest) + 1
    assert len(reader.encode(longest * count, PromptLimit(count, "too long")).tokens) == count


def test_spaces_do_not_make_a_prompt_too_long_before_it_is_tokenized(tiny_decoder: Path) -> None:
    reader = PromptReader(Bundle.open(tiny_decoder))
    with pytest.raises(UsageError, match=rf"^prompt of {2 * SHORT_TEXT} tokens: the limit\. Shorten"):
        reader.encode(" \n" * SHORT_TEXT, PromptLimit(64, "the limit"))


def test_a_prompt_that_cannot_fit_is_refused_with_its_length(tiny_decoder: Path) -> None:
    said = re.escape(
        f"prompt of {4 * SHORT_TEXT} characters without spaces: the model takes at most 63 tokens of at most"
    )
    with TextGenerator(tiny_decoder) as generator, pytest.raises(UsageError, match=f"^{said}"):
        generator.write("word " * SHORT_TEXT)


def test_too_many_token_ids_are_refused_before_they_are_decoded(tiny_decoder: Path) -> None:
    with TextGenerator(tiny_decoder) as generator, pytest.raises(UsageError, match="prompt of 64 tokens"):
        generator.checked([-1] * 64)  # which no tokenizer decodes
