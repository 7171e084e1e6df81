"""Texts of a schema's grammar validate for the first and the last of duplicate keys; few schemas are rejected."""

from __future__ import annotations

import json
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import llguidance
import numpy as np
import pytest
from jsonschema import Draft202012Validator
from real_schemas import HAND_WRITTEN, generated

from intaglio.errors import UsageError
from intaglio.runtime.sampling.grammar import WHITESPACE
from intaglio.runtime.sampling.json_schema.writer import schema_grammar

BYTES = llguidance.LLTokenizer("byte")
SUITE = [json.loads(line) for line in (Path(__file__).parent / "suite.jsonl").read_text("utf-8").splitlines()]
OWN = [*HAND_WRITTEN, *(generated(seed) for seed in range(180 - len(HAND_WRITTEN)))]
MOST_REFUSED = 0.25
MOST_SECONDS = 5  # of processor time, to read and compile a schema
# Formats that no grammar can express: they are annotations.
ANNOTATIONS = {"ecmascript-regex", "regex", "uri-template"}
PREFERRED = b'"}],:0123456789abcxy{[tfn-.\\'


@cache
def matcher(schema: str) -> llguidance.LLMatcher:
    made = llguidance.LLMatcher(BYTES, schema_grammar(schema, WHITESPACE), log_level=0)
    assert not made.is_error(), made.get_error()
    return made


def accepts(schema: Any, text: str) -> bool:
    found, written = matcher(json.dumps(schema)).deep_copy(), list(text.encode())
    return bool(found.try_consume_tokens(written) == len(written) and found.is_accepting())


def dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def walk(schema: Any, seed: int, most: int = 160) -> str | None:
    """A random text of a schema; None if it does not end soon. Keys are often repeated."""
    found, chance = matcher(json.dumps(schema)).deep_copy(), random.Random(seed)
    written = bytearray()
    while len(written) < most and not found.is_stopped():
        if found.is_accepting() and chance.random() < 0.4:
            break
        bits = np.unpackbits(np.frombuffer(found.compute_bitmask(), np.uint8), bitorder="little")[:256]
        allowed = [int(each) for each in np.flatnonzero(bits)]
        if not allowed:
            break
        preferred = [each for each in allowed if each in PREFERRED]
        written.append(chance.choice(preferred if preferred and chance.random() < 0.9 else allowed))
        assert found.try_consume_tokens([written[-1]]) == 1
    return written.decode() if found.is_accepting() else None


def readings(text: str) -> Iterator[Any]:
    """The value of a text, with the last and with the first of equal keys."""
    yield json.loads(text)
    yield json.loads(text, object_pairs_hook=lambda pairs: dict(reversed(pairs)))


class Outcome(NamedTuple):
    refused: str | None
    wrong: list[str]  # texts that the grammar allows and a validator rejects
    missing: int  # texts that a validator accepts and the grammar does not allow
    valid: int


def outcome(schema: Any, tests: list[list[Any]], walks: int) -> Outcome:
    began = time.process_time()
    try:
        matcher(json.dumps(schema))
    except UsageError as error:
        nothing = "no text" in str(error) and not any(valid for _, valid in tests)
        return Outcome(None if nothing and tests else str(error), [], 0, 0)
    finally:
        assert time.process_time() - began < MOST_SECONDS, schema
    validator = Draft202012Validator(schema)
    texts = [text for seed in range(walks) if (text := walk(schema, seed)) is not None]
    wrong = [text for text in texts if not all(map(validator.is_valid, readings(text)))]
    taken = [(dumped(value), accepts(schema, dumped(value)), valid) for value, valid in tests]
    wrong += [text for text, accepted, valid in taken if accepted and not valid]
    missing = sum(valid and not accepted for _, accepted, valid in taken)
    return Outcome(None, wrong, missing, sum(valid for *_, valid in taken))


def reported(name: str, outcomes: list[Outcome]) -> float:
    """Print the results of some schemas; return the fraction that is rejected."""
    refused = Counter(_cause(each.refused) for each in outcomes if each.refused)
    share = sum(refused.values()) / len(outcomes)
    valid, missing = sum(each.valid for each in outcomes), sum(each.missing for each in outcomes)
    lines = [f"{name}: {len(outcomes)} schemas, {share:.1%} refused, {valid - missing} of {valid} valid values written"]
    lines += [f"  {count:4} {cause}" for cause, count in refused.most_common()]
    sys.stdout.write("\n".join(["", *lines, ""]))
    return share


def _cause(message: str) -> str:
    return " ".join(message.split(": ", 1)[-1].split()[:3])


def of_suite(walks: int, every: int = 1) -> list[Outcome]:
    found = []
    for number, group in enumerate(SUITE[::every]):
        tests = [each for each in group["tests"] if _encodes(each[0])]
        each = outcome(group["schema"], tests, walks if "$schema" not in group["file"] else 0)
        exempt = group["file"].rpartition("/")[2] in ANNOTATIONS
        assert exempt or not each.wrong, (number, group["file"], group["description"], each.wrong)
        found.append(each)
    return found


def _encodes(value: Any) -> bool:
    try:
        dumped(value).encode()
    except UnicodeEncodeError:
        return False
    return True


def test_grammar_accepts_only_valid_instances_of_the_test_suite() -> None:
    assert reported("JSON-Schema-Test-Suite", of_suite(walks=0)) <= MOST_REFUSED


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"oneOf": [{"enum": ["a"]}, {"enum": ["a"], "format": "uuid"}]}, '"a"'),
        ({"not": {"enum": ["a"], "format": "uuid"}}, '"a"'),
        ({"oneOf": [{"enum": ["é"]}, {"enum": ["é"], "pattern": r"^\w$"}]}, '"é"'),
        ({"not": {"enum": ["é"], "pattern": r"^\w$"}}, '"é"'),
        ({"oneOf": [{"required": ["é"]}, {"required": ["é"], "propertyNames": {"pattern": r"^\w$"}}]}, '{"é":1}'),
        (
            {"oneOf": [{"required": ["é"]}, {"required": ["é"], "patternProperties": {r"^\W$": False}}]},
            '{"é":1}',
        ),
        ({"enum": [0.29], "multipleOf": 0.01, "not": {"const": 1}}, "0.29"),
        ({"oneOf": [{"const": 0.29}, {"const": 0.29, "multipleOf": 0.01}]}, "0.29"),
    ],
)
def test_ambiguous_instances_need_both_validators(schema: Any, text: str) -> None:
    try:
        accepted = accepts(schema, text)
    except UsageError:
        return
    assert not accepted or all(map(Draft202012Validator(schema).is_valid, readings(text)))


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"oneOf": [{"type": "string", "format": "date"}, {"type": "integer"}]}, '"2024-02-29"'),
        ({"not": {"type": "string", "format": "date"}}, "5"),
        ({"if": {"properties": {"a": {"format": "date"}}}, "then": {"required": ["b"]}, "type": "object"}, '{"b":1}'),
    ],
)
def test_format_constrains_strings_only(schema: Any, text: str) -> None:
    assert accepts(schema, text)


@pytest.mark.parametrize("number", range(0, len(OWN), 6))
def test_duplicate_keys_validate_with_first_and_last_value(number: int) -> None:
    assert not outcome(OWN[number], [], 3).wrong


@pytest.mark.proof
def test_generated_texts_validate_and_few_schemas_are_rejected() -> None:
    own = [outcome(schema, [], 25) for schema in OWN]
    assert not [(OWN[number], each.wrong) for number, each in enumerate(own) if each.wrong]
    assert reported("JSON-Schema-Test-Suite", of_suite(walks=10)) <= MOST_REFUSED
    assert reported("own schemas", own) <= MOST_REFUSED


@pytest.mark.proof
@pytest.mark.parametrize("seed", range(1000, 1060))
def test_generated_schemas_have_only_valid_texts(seed: int) -> None:
    for number in range(10):
        schema = generated(seed * 10 + number)
        assert not outcome(schema, [], 6).wrong, schema
