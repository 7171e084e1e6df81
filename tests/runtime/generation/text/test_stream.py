"""Streamed text: complete characters, stop strings that span tokens, final pieces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_tokenizers import BYTES, byte_tokenizer, word_tokenizer

from intaglio.errors import UsageError
from intaglio.runtime.generation.text.stream import TextStream

BYTE, WORD = byte_tokenizer(), word_tokenizer()
TEXTS = st.text(st.sampled_from("hello w€é😀�\n"), max_size=30)


@given(st.lists(st.integers(0, BYTE.get_vocab_size() - 1), max_size=60))
def test_pieces_add_up_to_the_decoded_text(tokens: list[int]) -> None:
    stream = TextStream(BYTE)
    assert "".join([*map(stream.push, tokens), stream.finish()]) == BYTE.decode(tokens)


@given(st.lists(st.integers(0, BYTE.get_vocab_size() - 1), max_size=60), st.integers(0, 60))
def test_deferred_text_is_decoded_at_the_end(tokens: list[int], pushed: int) -> None:
    stream = TextStream(BYTE)
    so_far = "".join(map(stream.push, tokens[:pushed]))
    for token in tokens[pushed:]:
        stream.defer(token)
    assert so_far + stream.finish() == BYTE.decode(tokens)
    assert stream.finish() == ""


@given(TEXTS, TEXTS)
def test_pieces_hold_complete_characters(prompt: str, text: str) -> None:
    context, tokens = BYTE.encode(prompt).ids, BYTE.encode(text).ids
    stream = TextStream(BYTE, context)
    so_far = ""
    for token in tokens:
        so_far += stream.push(token)
        assert text.startswith(so_far)
    assert so_far + stream.finish() == text


@given(TEXTS, st.lists(st.text(st.sampled_from("hello w€"), min_size=1, max_size=5), max_size=3))
def test_text_ends_before_the_first_stop_string_for_any_tokenization(text: str, stop: list[str]) -> None:
    ends = [(text.find(end) + len(end), text.find(end)) for end in stop if end in text]
    expected = text[: min(ends)[1]] if ends else text
    stream = TextStream(BYTE, stop=stop)
    so_far = ""
    for token in BYTE.encode(text).ids:
        so_far += stream.push(token)
        assert expected.startswith(so_far)
        if stream.stopped is not None:
            break
    assert so_far + stream.finish() == expected
    assert (stream.stopped is None) == (not ends)


def test_partial_stop_string_is_held_back() -> None:
    stream = TextStream(BYTE, stop=["end", "enough"])
    pieces = [stream.push(BYTES[letter]) for letter in "aenoen"]
    assert pieces == ["a", "", "", "", "eno", ""]
    assert [stream.push(BYTES["d"]), stream.stopped, stream.finish()] == ["", "end", ""]


def test_unfinished_stop_string_at_the_end_is_text() -> None:
    stream = TextStream(BYTE, stop=["end"])
    assert "".join(stream.push(BYTES[letter]) for letter in "theen") == "the"
    assert stream.finish() == "en"


def test_leading_space_is_kept_only_after_a_prompt() -> None:
    assert [TextStream(WORD).push(1), TextStream(WORD, [0]).push(1)] == ["cat", " cat"]


def test_bytes_of_one_character_are_emitted_together() -> None:
    stream = TextStream(WORD, [0])
    assert [stream.push(token) for token in (3, 4, 5, 6, 7)] == [" ", "", "", "€", " sat"]


def test_special_tokens_are_removed() -> None:
    stream = TextStream(BYTE)
    assert stream.push(BYTE.token_to_id("<|end|>")) + stream.finish() == ""


def test_partial_character_at_the_end_equals_the_tokenizers() -> None:
    stream = TextStream(BYTE)
    tokens = BYTE.encode("€").ids[:1]
    assert stream.push(tokens[0]) == ""
    assert [stream.finish(), stream.finish()] == [BYTE.decode(tokens), ""]


def test_empty_stop_string_is_rejected() -> None:
    with pytest.raises(UsageError, match="stop string is empty"):
        TextStream(BYTE, stop=["a", ""])
