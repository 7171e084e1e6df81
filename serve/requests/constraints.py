"""Constraints of a response: JSON, a JSON schema, a regular expression, a grammar, a list of choices."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from typing import Any, Literal

import msgspec
from tokenizers import Tokenizer

from intaglio.errors import UsageError
from intaglio.runtime.sampling.constraint import LogitConstraint
from intaglio.runtime.sampling.grammar import Grammar, GrammarConstraint
from intaglio.runtime.sampling.grammar_cache import Kind, compiled
from intaglio.serve.models.model import DecoderModel
from intaglio.serve.requests.generation_fields import GenerationFields
from intaglio.serve.responses.errors import invalid


class JsonSchema(msgspec.Struct, forbid_unknown_fields=True):
    """A named JSON schema."""

    name: str = "response"
    schema: dict[str, Any] | None = None  # None: any JSON object
    strict: bool | None = None  # accepted: a schema is always enforced
    description: str | None = None  # accepted and not used


class ResponseFormat(msgspec.Struct, forbid_unknown_fields=True):
    """The format of the text."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


def grammar_for(
    fields: GenerationFields, response_format: ResponseFormat | None, tokenizer: Tokenizer
) -> Grammar | None:
    """The grammar of the text, if any. Raises `ApiError`."""
    kind = (response_format.type if response_format else None) or "text"
    structured = fields.structured_outputs
    if structured is not None:
        if kind != "text":
            raise invalid("structured_outputs: response_format is given, too. Leave one out.", "structured_outputs")
        return _structured(structured, tokenizer)
    if response_format is not None and response_format.json_schema is not None and kind != "json_schema":
        unused = f"response_format.json_schema: not for the type {kind}. Leave it out, or set the type to json_schema."
        raise invalid(unused, "response_format.json_schema")
    if response_format is None or kind == "text":
        return None
    if kind == "json_object":
        return _compiled("schema", '{"type": "object"}', tokenizer, "response_format")
    if response_format.json_schema is None:
        raise invalid("response_format.json_schema: is missing. Add it.", "response_format.json_schema")
    schema = response_format.json_schema.schema
    if schema is None:
        schema = {"type": "object"}
    return _compiled("schema", json.dumps(schema), tokenizer, "response_format.json_schema.schema")


def grammar_of_tools(source: str, tokenizer: Tokenizer) -> Grammar:
    """The grammar of a text with tool calls. Raises `ApiError` for schemas that cannot be used."""
    return _compiled("lark", source, tokenizer, "tools")


def constraints_for(
    fields: GenerationFields, response_format: ResponseFormat | None, model: DecoderModel, texts: int
) -> Sequence[LogitConstraint | None]:
    """A constraint for each of the texts. Raises `ApiError`."""
    grammar = grammar_for(fields, response_format, model.worker.prompts.tokenizer)
    return constraints_of(grammar, fields.end_tokens(model), texts)


def constraints_of(
    grammar: Grammar | None, end_tokens: Collection[int], texts: int
) -> Sequence[LogitConstraint | None]:
    """A constraint by `grammar` for each of the texts. `end_tokens`: see `GrammarConstraint`."""
    if grammar is None:
        return [None] * texts
    return [GrammarConstraint(grammar, end_tokens) for _ in range(texts)]


def _structured(fields: dict[str, Any], tokenizer: Tokenizer) -> Grammar:
    """The grammar of vLLM's field `structured_outputs`: one of json, regex, grammar, choice."""
    kinds = ("json", "regex", "grammar", "choice")
    if len(fields) != 1 or (kind := next(iter(fields))) not in kinds:
        expected = ", ".join(kinds)
        raise invalid(f"structured_outputs: expected exactly one of {expected}.", "structured_outputs")
    value, param = fields[kind], f"structured_outputs.{kind}"
    if kind == "json" and isinstance(value, dict | str):
        return _compiled("schema", value if isinstance(value, str) else json.dumps(value), tokenizer, param)
    if kind == "choice" and isinstance(value, list) and value and all(isinstance(each, str) for each in value):
        return _compiled("regex", "|".join(map(re.escape, value)), tokenizer, param)
    if kind in ("regex", "grammar") and isinstance(value, str):
        return _compiled("regex" if kind == "regex" else "lark", value, tokenizer, param)
    raise invalid(f"{param}: has the wrong type. Send a schema, a string, or a list of strings for choice.", param)


def _compiled(kind: Kind, source: str, tokenizer: Tokenizer, param: str) -> Grammar:
    try:
        return compiled(kind, source, tokenizer)
    except UsageError as error:
        raise invalid(f"{param}: {error}", param) from error
