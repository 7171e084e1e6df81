"""The tokens of languages in a source and at the start of a text."""

from __future__ import annotations

import pytest

from intaglio.bundle.bundle import Encoder
from intaglio.errors import UsageError
from intaglio.runtime.generation.requests.languages import in_language, start_tokens
from intaglio.runtime.generation.requests.prompt_encoder import EncodedPrompt

LANGUAGES = {"en": 11, "fr": 12}


def encoder(start: int, forced: int | None = None, languages: dict[str, int] = LANGUAGES) -> Encoder:
    return Encoder("encoder.onnx", (), (), start, 1, forced, (), languages)


@pytest.mark.parametrize(
    ("found", "language", "expected"),
    [
        (None, None, ()),
        (encoder(2), None, (2,)),
        (encoder(2, 11), None, (2, 11)),
        (encoder(2, 11), "fr", (2, 12)),
        (encoder(2), "fr", (2, 12)),
        (encoder(11), "fr", (12,)),
        (encoder(11), None, (11,)),
    ],
)
def test_text_begins_with_the_start_token_and_its_language(
    found: Encoder | None, language: str | None, expected: tuple[int, ...]
) -> None:
    assert start_tokens(found, language) == expected


@pytest.mark.parametrize(
    ("tokens", "expected"), [([11, 5, 2], [12, 5, 2]), ([5, 2, 11], [5, 2, 12]), ([11, 12, 2], [12, 12, 2])]
)
def test_language_of_the_source_is_replaced_where_the_tokenizer_writes_it(
    tokens: list[int], expected: list[int]
) -> None:
    prompt = EncodedPrompt("text", tokens)
    assert in_language(encoder(2), prompt, "fr").tokens == expected
    assert in_language(encoder(2), prompt, None) is prompt


def test_source_without_a_language_or_model_without_languages_is_refused() -> None:
    with pytest.raises(UsageError, match="source language fr: the tokenizer of this model writes no language"):
        in_language(encoder(2), EncodedPrompt("text", [5, 6, 2]), "fr")
    with pytest.raises(UsageError, match="language fr: the tokenizer of this model has no languages"):
        start_tokens(encoder(2, languages={}), "fr")
    many = {f"x{number}": number for number in range(12)}
    with pytest.raises(UsageError, match="expected one of x0, x1, x10, x11, x2, x3, x4, x5 and 4 more"):
        start_tokens(encoder(2, languages=many), "fr")
