"""Traces: the passages of a text add up to it, without the rejected drafts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from intaglio.runtime.generation.text.authors import Passage, passages
from intaglio.runtime.generation.text.stream import TextStream
from intaglio.runtime.strategies import Emitted


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """A token for every byte, and one that ends a text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE({letter: index for index, letter in enumerate(alphabet)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(["<|end|>"])
    return made


TEXTS = st.text(st.sampled_from("a b€é😀�\n"), max_size=12)


def written_text(tokenizer: Tokenizer, prompt: Sequence[int], trace: Sequence[Emitted], stop: Sequence[str]) -> str:
    """The text that generation returns for the accepted tokens."""
    stream = TextStream(tokenizer, prompt, stop)
    kept = [written.token for written in trace if not written.rolled_back]
    return "".join(map(stream.push, kept)) + stream.finish()


@given(data=st.data(), prompt=TEXTS, text=TEXTS, stop=st.lists(st.sampled_from(["b", "€", "a ", "😀é"]), max_size=2))
def test_accepted_passages_add_up_to_the_text(
    data: st.DataObject, prompt: str, text: str, stop: list[str], tokenizer: Tokenizer
) -> None:
    """Authors change within characters, any bytes are rolled back, and the text may end within a character."""
    start, tokens = tokenizer.encode(prompt).ids, tokenizer.encode(text).ids
    tokens = tokens[: data.draw(st.integers(0, len(tokens)))]
    trace: list[Emitted] = []
    for token in tokens:
        trace += rejected(data.draw(st.one_of(st.just([]), st.lists(st.integers(0, 255), max_size=4))))
        trace += data.draw(st.sampled_from([small, large]))([token])
    expected = written_text(tokenizer, start, trace, stop)
    found = list(passages(tokenizer, start, trace, expected))
    assert "".join(passage.text for passage in found if not passage.rolled_back) == expected
    assert all(passage.text for passage in found)
    assert all(passage.by == "small" for passage in found if passage.rolled_back)


def small(tokens: list[int]) -> list[Emitted]:
    return [Emitted(token, "small") for token in tokens]


def rejected(tokens: list[int]) -> list[Emitted]:
    return [Emitted(token, "small", rolled_back=True) for token in tokens]


def large(tokens: list[int]) -> list[Emitted]:
    return [Emitted(token, "large") for token in tokens]


@pytest.fixture(scope="module")
def ids(tokenizer: Tokenizer) -> Callable[[str], list[int]]:
    """The tokens of a text, one for every byte."""
    return lambda text: list(tokenizer.encode(text).ids)


Ids = Callable[[str], list[int]]


def test_passages_are_in_order_and_merged(tokenizer: Tokenizer, ids: Ids) -> None:
    trace = [*small(ids("ab")), *rejected(ids("xy")), *large(ids("c")), *large(ids("d")), *small(ids("e"))]
    assert list(passages(tokenizer, [], trace, "abcde")) == [
        Passage("ab", "small", False),
        Passage("xy", "small", True),
        Passage("cd", "large", False),
        Passage("e", "small", False),
    ]


def test_character_of_two_authors_belongs_to_the_second(tokenizer: Tokenizer, ids: Ids) -> None:
    trace = [*small(ids("a€")[:2]), *large(ids("€b")[1:])]
    assert list(passages(tokenizer, [], trace, "a€b")) == [Passage("a", "small", False), Passage("€b", "large", False)]


def test_rollback_within_a_character_shows_its_first_bytes(tokenizer: Tokenizer, ids: Ids) -> None:
    first, *rest = ids("€")
    trace = [*small([first]), *rejected(rest), *large(rest)]
    assert list(passages(tokenizer, [], trace, "€")) == [Passage("€", "small", True), Passage("€", "large", False)]


def test_partial_character_at_the_end_belongs_to_its_author(tokenizer: Tokenizer, ids: Ids) -> None:
    trace = [*large(ids("a€")[:2]), *rejected(ids("b"))]
    assert list(passages(tokenizer, [], trace, "a�")) == [
        Passage("a", "large", False),
        Passage("�b", "small", True),
        Passage("�", "large", False),
    ]


def test_end_token_and_stop_string_are_in_no_passage(tokenizer: Tokenizer, ids: Ids) -> None:
    """A stop string of two authors, and a token that ends a text without being a special one."""
    trace = [*small(ids("ab#")), *large(ids("#"))]
    assert list(passages(tokenizer, [], trace, "ab")) == [Passage("ab", "small", False)]
    assert list(passages(tokenizer, [], trace[-1:], "")) == []
    assert list(passages(tokenizer, [], [], "")) == []
