"""Grammars: what they allow after any text, in any order, and their errors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from intaglio.errors import UsageError
from intaglio.runtime.generation.grammar import Grammar, GrammarConstraint

END = 0  # <|endoftext|>


@pytest.fixture(scope="module")
def tokenizer(language_models: Path) -> Tokenizer:
    return Tokenizer.from_file(str(language_models / "large" / "tokenizer.json"))


def test_a_complete_document_allows_only_end_tokens(tokenizer: Tokenizer) -> None:
    grammar = Grammar.from_json_schema({"type": "object", "maxProperties": 0}, tokenizer)
    constraint = GrammarConstraint(grammar, {END})
    text = tokenizer.encode("{}").ids
    assert not constraint.allowed(text[:-1])[END] and not constraint.finished(text[:-1])
    assert np.flatnonzero(constraint.allowed(text)).tolist() == [END]
    assert constraint.finished(text)


@pytest.mark.parametrize(
    ("schema", "cause"),
    [
        ("{", "is not JSON"),
        ("[]", "is a list, expected an object"),
        ({"type": "foo"}, "Invalid type: foo"),
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"$ref": "https://example.org/schema"}, "not present"),
        ({"type": "string", "pattern": "(?=a)b"}, "look-around"),
        ({"type": "string", "format": "nonsense"}, "Unknown format: nonsense"),
    ],
)
def test_an_invalid_schema_is_one_line_that_names_the_cause(
    schema: dict[str, object] | str, cause: str, tokenizer: Tokenizer
) -> None:
    with pytest.raises(UsageError, match=rf"^the JSON schema [^\n]*{cause}[^\n]*$"):
        Grammar.from_json_schema(schema, tokenizer)
