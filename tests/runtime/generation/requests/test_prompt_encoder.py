"""Too long prompts: those that fit are accepted, those that cannot fit are not tokenized."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from intaglio.bundle.bundle import Bundle
from intaglio.errors import UsageError
from intaglio.runtime.generation.generate import TextGenerator
from intaglio.runtime.generation.requests.prompt_encoder import PromptEncoder, PromptLimit
from intaglio.runtime.text.tokenizer import SHORT_TEXT


def test_prompt_of_longest_tokens_fits(tiny_decoder: Path) -> None:
    reader = PromptEncoder(Bundle.open(tiny_decoder))
    longest = max(reader.tokenizer.get_vocab(), key=len)
    count = SHORT_TEXT // len(longest) + 1
    assert len(reader.encode(longest * count, PromptLimit(count, "too long")).tokens) == count


def test_spaces_do_not_fail_the_length_check_before_tokenization(tiny_decoder: Path) -> None:
    reader = PromptEncoder(Bundle.open(tiny_decoder))
    with pytest.raises(UsageError, match=rf"^prompt of {2 * SHORT_TEXT} tokens: the limit\. Shorten"):
        reader.encode(" \n" * SHORT_TEXT, PromptLimit(64, "the limit"))


def test_oversized_prompt_error_states_its_length(tiny_decoder: Path) -> None:
    message = re.escape(
        f"prompt of {4 * SHORT_TEXT} characters without spaces: the model takes at most 63 tokens of at most"
    )
    with TextGenerator(tiny_decoder) as generator, pytest.raises(UsageError, match=f"^{message}"):
        generator.write("word " * SHORT_TEXT)


def test_too_many_token_ids_are_rejected_before_decoding(tiny_decoder: Path) -> None:
    with TextGenerator(tiny_decoder) as generator, pytest.raises(UsageError, match="prompt of 64 tokens"):
        generator.checked([-1] * 64)  # which no tokenizer decodes
