"""Who wrote what: the passages of a text are the text, whatever was taken back in between."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from intaglio.runtime.generation.text_stream import TextStream
from intaglio.runtime.generation.trace import Passage, passages
from intaglio.runtime.strategies import Written


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


def written_text(tokenizer: Tokenizer, prompt: Sequence[int], trace: Sequence[Written], stop: Sequence[str]) -> str:
    """What a generation gives for the tokens that are kept."""
    stream = TextStream(tokenizer, prompt, stop)
    kept = [written.token for written in trace if not written.rolled_back]
    return "".join(map(stream.push, kept)) + stream.finish()


@given(data=st.data(), prompt=TEXTS, text=TEXTS, stop=st.lists(st.sampled_from(["b", "€", "a ", "😀é"]), max_size=2))
def test_kept_passages_add_up_to_the_text(
    data: st.DataObject, prompt: str, text: str, stop: list[str], tokenizer: Tokenizer
) -> None:
    """The authors change within characters, any bytes are taken back anywhere, and the text may end in a character."""
    start, tokens = tokenizer.encode(prompt).ids, tokenizer.encode(text).ids
    tokens = tokens[: data.draw(st.integers(0, len(tokens)))]
    trace: list[Written] = []
    for token in tokens:
        trace += taken_back(data.draw(st.one_of(st.just([]), st.lists(st.integers(0, 255), max_size=4))))
        trace += data.draw(st.sampled_from([small, large]))([token])
    expected = written_text(tokenizer, start, trace, stop)
    found = list(passages(tokenizer, start, trace, expected))
    assert "".join(passage.text for passage in found if not passage.rolled_back) == expected
    assert all(passage.text for passage in found)
    assert all(passage.by == "small" for passage in found if passage.rolled_back)


def small(tokens: list[int]) -> list[Written]:
    return [Written(token, "small") for token in tokens]


def taken_back(tokens: list[int]) -> list[Written]:
    return [Written(token, "small", rolled_back=True) for token in tokens]


def large(tokens: list[int]) -> list[Written]:
    return [Written(token, "large") for token in tokens]


@pytest.fixture(scope="module")
def ids(tokenizer: Tokenizer) -> Callable[[str], list[int]]:
    """The tokens of a text, one for every byte."""
    return lambda text: list(tokenizer.encode(text).ids)


Ids = Callable[[str], list[int]]


def test_passages_are_in_order_and_merged(tokenizer: Tokenizer, ids: Ids) -> None:
    trace = [*small(ids("ab")), *taken_back(ids("xy")), *large(ids("c")), *large(ids("d")), *small(ids("e"))]
    assert list(passages(tokenizer, [], trace, "abcde")) == [
        Passage("ab", "small", False),
        Passage("xy", "small", True),
        Passage("cd", "large", False),
        Passage("e", "small", False),
    ]


def test_a_character_of_two_authors_belongs_to_the_second(tokenizer: Tokenizer, ids: Ids) -> None:
    trace = [*small(ids("a€")[:2]), *large(ids("€b")[1:])]
    assert list(passages(tokenizer, [], trace, "a€b")) == [Passage("a", "small", False), Passage("€b", "large", False)]


def test_what_is_taken_back_within_a_character_is_shown_with_its_beginning(tokenizer: Tokenizer, ids: Ids) -> None:
    first, *rest = ids("€")
    trace = [*small([first]), *taken_back(rest), *large(rest)]
    assert list(passages(tokenizer, [], trace, "€")) == [Passage("€", "small", True), Passage("€", "large", False)]


def test_a_half_character_at_the_end_belongs_to_who_wrote_it(tokenizer: Tokenizer, ids: Ids) -> None:
    trace = [*large(ids("a€")[:2]), *taken_back(ids("b"))]
    assert list(passages(tokenizer, [], trace, "a�")) == [
        Passage("a", "large", False),
        Passage("�b", "small", True),
        Passage("�", "large", False),
    ]


def test_what_ends_a_text_is_in_no_passage(tokenizer: Tokenizer, ids: Ids) -> None:
    """A stop string of two authors, and a token that ends a text without being a special one."""
    trace = [*small(ids("ab#")), *large(ids("#"))]
    assert list(passages(tokenizer, [], trace, "ab")) == [Passage("ab", "small", False)]
    assert list(passages(tokenizer, [], trace[-1:], "")) == []
    assert list(passages(tokenizer, [], [], "")) == []
