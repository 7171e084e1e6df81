"""Text as it comes: whole characters, stop strings that span tokens, nothing taken back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_tokenizers import BYTES, byte_tokenizer, word_tokenizer

from intaglio.errors import UsageError
from intaglio.runtime.generation.text_stream import TextStream

BYTE, WORD = byte_tokenizer(), word_tokenizer()
TEXTS = st.text(st.sampled_from("hello w€é😀�\n"), max_size=30)


@given(st.lists(st.integers(0, BYTE.get_vocab_size() - 1), max_size=60))
def test_pieces_of_any_tokens_add_up_to_their_text(tokens: list[int]) -> None:
    stream = TextStream(BYTE)
    assert "".join([*map(stream.push, tokens), stream.finish()]) == BYTE.decode(tokens)


@given(st.lists(st.integers(0, BYTE.get_vocab_size() - 1), max_size=60), st.integers(0, 60))
def test_text_that_is_put_off_comes_at_the_end(tokens: list[int], pushed: int) -> None:
    stream = TextStream(BYTE)
    so_far = "".join(map(stream.push, tokens[:pushed]))
    for token in tokens[pushed:]:
        stream.put_off(token)
    assert so_far + stream.finish() == BYTE.decode(tokens)
    assert stream.finish() == ""


@given(TEXTS, TEXTS)
def test_every_piece_is_whole_characters(prompt: str, text: str) -> None:
    context, tokens = BYTE.encode(prompt).ids, BYTE.encode(text).ids
    stream = TextStream(BYTE, context)
    so_far = ""
    for token in tokens:
        so_far += stream.push(token)
        assert text.startswith(so_far)
    assert so_far + stream.finish() == text


@given(TEXTS, st.lists(st.text(st.sampled_from("hello w€"), min_size=1, max_size=5), max_size=3))
def test_text_ends_before_the_first_complete_stop_string_however_tokens_cut_it(text: str, stop: list[str]) -> None:
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


def test_a_possible_beginning_of_a_stop_string_waits() -> None:
    stream = TextStream(BYTE, stop=["end", "enough"])
    pieces = [stream.push(BYTES[letter]) for letter in "aenoen"]
    assert pieces == ["a", "", "", "", "eno", ""]
    assert [stream.push(BYTES["d"]), stream.stopped, stream.finish()] == ["", "end", ""]


def test_a_stop_string_at_the_very_end_is_only_half_there() -> None:
    stream = TextStream(BYTE, stop=["end"])
    assert "".join(stream.push(BYTES[letter]) for letter in "theen") == "the"
    assert stream.finish() == "en"


def test_a_word_keeps_its_space_after_a_prompt_and_loses_it_at_the_beginning() -> None:
    assert [TextStream(WORD).push(1), TextStream(WORD, [0]).push(1)] == ["cat", " cat"]


def test_bytes_of_one_character_come_together() -> None:
    stream = TextStream(WORD, [0])
    assert [stream.push(token) for token in (3, 4, 5, 6, 7)] == [" ", "", "", "€", " sat"]


def test_special_tokens_are_not_text() -> None:
    stream = TextStream(BYTE)
    assert stream.push(BYTE.token_to_id("<|end|>")) + stream.finish() == ""


def test_an_unfinished_character_at_the_end_is_as_the_tokenizer_has_it() -> None:
    stream = TextStream(BYTE)
    tokens = BYTE.encode("€").ids[:1]
    assert stream.push(tokens[0]) == ""
    assert [stream.finish(), stream.finish()] == [BYTE.decode(tokens), ""]


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(UsageError, match="stop string is empty"):
        TextStream(BYTE, stop=["a", ""])
