"""The bytes of tokens: together those of the text, also where a token ends in the middle of a character."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_tokenizers import byte_tokenizer, word_tokenizer
from tokenizers.pre_tokenizers import ByteLevel

from intaglio.runtime.sampling.token_bytes import BYTE_OF_CHARACTER, TokenBytes

BYTE, WORD = byte_tokenizer(), word_tokenizer()


@given(st.text(st.sampled_from("hello w€é😀�\n\t\x00\x7f\xad"), max_size=30))
def test_token_bytes_add_up_to_the_texts_bytes(text: str) -> None:
    assert b"".join(map(TokenBytes(BYTE), BYTE.encode(text).ids)) == text.encode()


def test_byte_level_tokens_map_each_byte_to_a_character() -> None:
    assert set(BYTE_OF_CHARACTER) == set(ByteLevel.alphabet())
    assert sorted(BYTE_OF_CHARACTER.values()) == list(range(256))


@pytest.mark.parametrize(
    ("piece", "expected"),
    [("▁cat", b" cat"), ("s", b"s"), ("<0xE2>", b"\xe2"), ("<unk>", b"<unk>"), ("▁", b" ")],
)
def test_sentencepiece_tokens_have_their_bytes(piece: str, expected: bytes) -> None:
    assert TokenBytes(WORD)(WORD.token_to_id(piece)) == expected


def test_special_token_is_its_name_and_unknown_id_is_empty() -> None:
    assert TokenBytes(BYTE)(BYTE.token_to_id("<|end|>")) == b"<|end|>"
    assert TokenBytes(BYTE)(100_000) == b""
