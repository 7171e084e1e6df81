"""Grammars: their masks after any text, in any order, their errors and their limits."""

from __future__ import annotations

import json
import random
import re
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from covering import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from intaglio.errors import MissingExtraError, UsageError
from intaglio.runtime.generation.tool_calls.formats import HERMES
from intaglio.runtime.generation.tool_calls.tool_grammar import tool_grammar
from intaglio.runtime.generation.tool_calls.tools import Mode, ToolChoice, ToolDefinition
from intaglio.runtime.sampling import grammar_check, grammar_tokenizer
from intaglio.runtime.sampling.constraint import LogitConstraint
from intaglio.runtime.sampling.grammar import MASKS, MAX_CHARACTERS, Grammar, GrammarConstraint, grammar_of, read_mask

ROOT = Path(__file__).parents[3]
TOKENIZER = Tokenizer.from_file(str(ROOT / "examples" / "language_models" / "large" / "tokenizer.json"))
END = 0  # <|endoftext|>
SCHEMAS = [
    json.loads(line) for line in (ROOT / "benchmarks" / "decoding" / "schemas.jsonl").read_text("utf-8").splitlines()
]
DOZEN = [each["schema"] for each in SCHEMAS[::4]]
GRAMMARS = [
    *(Grammar.from_json_schema(schema, TOKENIZER) for schema in DOZEN),
    Grammar.from_regex("(ab|a)*c?", TOKENIZER),
    Grammar.from_lark('start: "a" start "b" | "c"', TOKENIZER),
]


def ids(text: str) -> list[int]:
    return TOKENIZER.encode(text).ids


def walk(constraint: LogitConstraint, seed: int, most: int = 300) -> list[int]:
    """Random tokens that a constraint allows, to an end token, the end of the grammar, or `most` of them."""
    chance, written = random.Random(seed), list[int]()
    while len(written) < most and END not in written and not constraint.finished(written):
        mask = constraint.allowed(written)
        assert mask is not None
        written.append(int(chance.choice(np.flatnonzero(mask))))
    return written


@settings(max_examples=examples(30), deadline=None)
@given(number=st.integers(0, len(GRAMMARS) - 1), seed=st.integers(0, 10**6), data=st.data())
def test_masks_are_independent_of_query_order(number: int, seed: int, data: st.DataObject) -> None:
    constraint = GrammarConstraint(GRAMMARS[number], {END})
    texts = [walk(GrammarConstraint(GRAMMARS[number], {END}), seed + each, 90) for each in range(3)]
    for _ in range(25):
        text = data.draw(st.sampled_from(texts))
        written = text[: data.draw(st.integers(0, len(text)))]
        fresh = GrammarConstraint(GRAMMARS[number], {END})
        if data.draw(st.booleans()):
            assert np.array_equal(constraint.allowed(written), fresh.allowed(written))
            assert constraint.finished(written) == fresh.finished(written)
        elif END not in written:
            draft = data.draw(st.sampled_from(texts))[len(written) :]
            assert constraint.count_allowed(written, draft) == LogitConstraint.count_allowed(fresh, written, draft)


@settings(max_examples=examples(40), deadline=None)
@given(number=st.integers(0, len(DOZEN) - 1), seed=st.integers(0, 10**6))
def test_finished_random_walks_are_valid_documents(number: int, seed: int) -> None:
    constraint = GrammarConstraint(GRAMMARS[number], {END})
    written = walk(constraint, seed)
    if constraint.finished(written):
        document = json.loads(TOKENIZER.decode([token for token in written if token != END]))
        Draft202012Validator(DOZEN[number]).validate(document)


def test_masks_are_correct_beyond_the_cache_size() -> None:
    grammar = Grammar.from_regex("(ab|a)*c?", TOKENIZER)
    constraint, written = GrammarConstraint(grammar, {END}), ids("a") * (2 * MASKS)
    for size in [*range(len(written)), *range(len(written), 0, -7)]:
        fresh = GrammarConstraint(grammar, {END}).allowed(written[:size])
        assert np.array_equal(constraint.allowed(written[:size]), fresh)


@given(
    bits=st.binary(min_size=12, max_size=12),
    size=st.integers(1, 90),
    beyond=st.integers(0, 9),
    ends=st.frozensets(st.integers(0, 89), max_size=3),
)
def test_mask_uses_the_requests_end_tokens(bits: bytes, size: int, beyond: int, ends: frozenset[int]) -> None:
    width = max(size + beyond, *(end + 1 for end in ends), 0)
    given_bits = np.frombuffer(bits, np.uint8)
    booleans = np.unpackbits(given_bits, bitorder="little").astype(bool)
    expected = np.zeros(width, bool)
    expected[:size] = booleans[:size]
    expected[list(ends)] = False
    found = read_mask(given_bits, size, width, ends)
    assert found.finished == (booleans[size] and not expected.any())
    expected[list(ends)] = booleans[size]
    assert found.octets.tobytes() == np.packbits(expected, bitorder="little").tobytes()
    assert [found.allows(token) for token in range(width)] == expected.tolist()


def test_complete_document_allows_only_end_tokens() -> None:
    constraint = GrammarConstraint(
        Grammar.from_json_schema({"type": "object", "maxProperties": 0}, TOKENIZER), {END, 7}
    )
    text = ids("{}")
    assert not constraint.allowed(text[:-1])[[END, 7]].any() and not constraint.finished(text[:-1])
    for after in (text, [*text, END], [*text, 7]):
        assert np.flatnonzero(constraint.allowed(after)).tolist() == [END, 7]
        assert constraint.finished(after)


def test_optional_end_allows_end_and_continuation() -> None:
    constraint = GrammarConstraint(Grammar.from_regex("a+", TOKENIZER), {END})
    mask = constraint.allowed(ids("a"))
    assert mask[END] and mask[ids("a")[0]] and not constraint.finished(ids("a"))
    assert not constraint.allowed([])[END]


def test_padding_tokens_are_not_allowed() -> None:
    """A model's vocabulary may be padded; the library's own end token has the first id after the tokenizer's."""
    grammar = Grammar.from_regex("a*", TOKENIZER)
    size = TOKENIZER.get_vocab_size()
    constraint = GrammarConstraint(grammar, {size + 3})
    assert len(constraint.allowed([])) == size + 4
    assert np.flatnonzero(constraint.allowed([]))[-1] == size + 3
    assert not constraint.allowed([])[size]
    assert not constraint.allowed([size]).any() and not constraint.allowed([10**6]).any()
    assert constraint.count_allowed([], [size]) == constraint.count_allowed([], [10**6]) == 0
    assert constraint.count_allowed([], [*ids("aaa"), size + 3]) == len(ids("aaa")) + 1


def test_drafts_are_truncated_at_the_first_invalid_token() -> None:
    constraint = GrammarConstraint(Grammar.from_regex("[0-9]{3}", TOKENIZER), {END})
    digits = ids("1") * 5
    assert constraint.count_allowed([], digits) == 3
    assert constraint.count_allowed(digits[:1], [*digits[:1], *ids("x")]) == 1
    assert constraint.count_allowed(digits[:3], [END]) == 1
    assert constraint.count_allowed(digits[:2], [END]) == 0
    assert constraint.count_allowed([*digits[:3], END], digits) == 0


def test_special_tokens_and_schemas_in_a_lark_grammar() -> None:
    tokenizer = Tokenizer.from_str(TOKENIZER.to_str())
    tokenizer.add_special_tokens(["<tool_call>", "</tool_call>"])
    opens, closes = (tokenizer.token_to_id(each) for each in ("<tool_call>", "</tool_call>"))
    schema = {"type": "object", "properties": {"city": {"enum": ["Rome"]}}, "required": ["city"]}
    grammar = Grammar.from_lark(
        f"start: TEXT (<tool_call> call </tool_call>)*\nTEXT: /[a-z ]*/\ncall: %json {json.dumps(schema)}", tokenizer
    )
    constraint = GrammarConstraint(grammar, {END})
    call = tokenizer.encode('{"city": "Rome"}').ids
    assert constraint.allowed(ids("let me see"))[[opens, END]].all()
    assert not constraint.allowed([opens])[END]
    assert constraint.count_allowed([], [*ids("see"), opens, *call, closes, END]) == len(ids("see")) + len(call) + 3
    assert constraint.count_allowed([], [opens, *tokenizer.encode('{"city": "Oslo"}').ids]) < len(call)
    assert constraint.count_allowed([], tokenizer.encode("<tool", add_special_tokens=False).ids) == 0


BOOLEAN = {"type": "boolean"}
TWICE = [
    ({"properties": {"a": BOOLEAN}}, r'{"a": true, "\u0061": 1}'),
    ({"properties": {"a": BOOLEAN}}, r'{"\u0061": 1}'),
    ({"properties": {"\n": BOOLEAN}}, r'{"\n": true, "\u000a": 1}'),
    ({"properties": {"\n": BOOLEAN}}, r'{"\n": true, "\u000A": 1}'),
    ({"properties": {"/": BOOLEAN}}, r'{"\/": 1}'),
    ({"properties": {"\x01": BOOLEAN}}, r'{"\u0001": 1}'),
    ({"properties": {"\U0001f600": BOOLEAN}}, r'{"\ud83d\ude00": 1}'),
    ({"patternProperties": {"^a": BOOLEAN}}, r'{"\u0061b": 1}'),
    ({"patternProperties": {"^a": BOOLEAN}, "additionalProperties": False}, r'{"ab": true, "\u0062": 1}'),
]


@pytest.mark.parametrize(("schema", "text"), TWICE)
def test_escaped_key_equals_its_plain_form(schema: dict[str, Any], text: str) -> None:
    schema = {"type": "object", **schema}
    assert not matches(Grammar.from_json_schema(schema, TOKENIZER), text)
    call = tool_grammar(HERMES, ToolChoice("required", [ToolDefinition("t", schema)], 1), TOKENIZER)
    written = f'<tool_call>\n{{"name": "t", "arguments": {text}}}\n</tool_call>'
    assert not matches(Grammar.from_lark(call, TOKENIZER), written)


@pytest.mark.parametrize("value", ["3", "6"])
def test_whitespace_in_documents_is_bounded(value: str) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer", "multipleOf": 3}}, "required": ["a"]}
    grammar = Grammar.from_json_schema(schema, TOKENIZER)
    for once in ("", " ", "\n", "\n  ", "\n\t"):
        assert matches(grammar, f'{{{once}"a"{once}:{once}{value}{once}}}')
    for twice in ("  ", "\n\n", " \n", "\n \n", "\n" + 17 * " "):
        for parts in (("{", '"a":', "}"), ('{"a"', ":", "}"), ('{"a":', "", "}")):
            head, middle, tail = parts
            assert not matches(grammar, f"{head}{twice}{middle}{value}{tail}"), (head, twice)
        assert not matches(grammar, f'{{"a":{value}{twice}}}')


def matches(grammar: Grammar, text: str) -> bool:
    return GrammarConstraint(grammar, {END}).count_allowed([], [*ids(text), END]) == len(ids(text)) + 1


@pytest.mark.parametrize(
    ("schema", "cause"),
    [
        ("{", "is not JSON"),
        ("[]", "is a list, expected an object"),
        ("[" * 100_000, "is not JSON|nested"),
        ({"type": "foo"}, "at #: type is .foo., expected one or more of"),
        ({"type": "array", "uniqueItems": True}, "at #: uniqueItems: items of more than 64 values"),
        ({"$ref": "https://example.org/schema"}, "is not in the schema"),
        ({"$ref": "#/$defs/none"}, "there is no schema"),
        ({"$ref": "#"}, "matches no text that ends"),
        ({"type": "integer", "minimum": 5, "maximum": 4}, "matches no text that ends"),
        ({"type": "string", "pattern": "b(?=a)"}, "at #: pattern .* look-around is not supported"),
        ({"type": "string", "pattern": "("}, "at #: pattern .*unterminated"),
        ({"properties": {"a/b": {"maxLength": -1}}}, "at #/properties/a~1b: maxLength is -1, expected a whole number"),
        ({"const": float("nan")}, "not valid JSON"),
        ({"const": "\ud800"}, "not valid JSON"),
    ],
)
def test_invalid_schema_error_names_the_cause_in_one_line(schema: dict[str, Any] | str, cause: str) -> None:
    with pytest.raises(UsageError, match=rf"^the JSON schema [^\n]*({cause})[^\n]*$"):
        Grammar.from_json_schema(schema, TOKENIZER)


@pytest.mark.parametrize(
    ("make", "cause"),
    [
        (lambda: Grammar.from_regex("(", TOKENIZER), "invalid regular expression: unclosed group"),
        (lambda: Grammar.from_regex("", TOKENIZER), "no text that the tokenizer can write, except the empty one"),
        (lambda: Grammar.from_regex("a" * (MAX_CHARACTERS + 1), TOKENIZER), f"at most {MAX_CHARACTERS}"),
        (lambda: Grammar.from_lark("start: other", TOKENIZER), 'unknown name: "other"'),
        (lambda: Grammar.from_lark("start: <nope>", TOKENIZER), 'unknown special token: "<nope>"'),
        (lambda: Grammar.from_lark("start: /a(/", TOKENIZER), r"at 1\(8\): invalid regular expression: unclosed group"),
        (lambda: Grammar.from_lark('{"type": "object"}', TOKENIZER), "Is it a schema"),
        (lambda: grammar_of(TOKENIZER, {}, None, "a"), "^--schema and --regex are given"),
    ],
)
def test_invalid_grammar_error_names_the_cause_in_one_line(make: Callable[[], Grammar], cause: str) -> None:
    with pytest.raises(UsageError, match=cause) as raised:
        make()
    assert "\n" not in str(raised.value)


def nested(depth: int) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": nested(depth - 1)}} if depth else {}


def chain(length: int) -> dict[str, Any]:
    """References to references, each an overflow of some kilobytes of stack in the library."""
    names = [f"d{number}" for number in range(length)]
    parts = {name: {"properties": {"a": {"$ref": f"#/$defs/{other}"}}} for name, other in pairwise(names)}
    return {"$defs": {**parts, names[-1]: {}}, "$ref": "#/$defs/d0"}


def terminals(count: int) -> str:
    """Each terminal contains the next one twice."""
    doubled = [f"T{number}: T{number + 1} T{number + 1}" for number in range(count)]
    return "\n".join(["start: T0", *doubled, f'T{count}: "a"'])


@pytest.mark.parametrize(
    ("make", "cause"),
    [
        (lambda: Grammar.from_json_schema(nested(100), TOKENIZER), "nested more than"),
        (lambda: Grammar.from_json_schema(chain(1500), TOKENIZER), "to compile"),
        (lambda: Grammar.from_lark(terminals(3000), TOKENIZER), "to compile"),
        (lambda: Grammar.from_lark(terminals(60), TOKENIZER), "too big|to compile|more than 64 MB"),
    ],
)
def test_hostile_grammar_is_rejected_without_crash(make: Callable[[], Grammar], cause: str) -> None:
    with pytest.raises(UsageError, match=cause):
        make()


def resident() -> int:
    """Megabytes of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 >> 20


BOMB = "start: A\nA: /(.*a.{20}.*)/ & /.*b.{25}c.*/ & ~/.*d.{25}.*/"


def test_exploding_terminals_are_rejected_within_time_and_memory_limits() -> None:
    before, started = resident(), time.monotonic()
    with pytest.raises(UsageError, match=r"^the Lark grammar takes more than [^\n]* to compile[^\n]*$"):
        Grammar.from_lark(BOMB, TOKENIZER)
    assert time.monotonic() - started < 15
    assert resident() - before < 100


def test_regex_using_much_memory_is_rejected() -> None:
    before = resident()
    with pytest.raises(UsageError, match=r"^the regular expression needs more than 64 MB\. Simplify it"):
        Grammar.from_regex("(a{1000}b{1000}){200}x", TOKENIZER)
    assert resident() - before < 50


def test_slow_grammar_check_does_not_block_others() -> None:
    with ThreadPoolExecutor() as pool:
        bomb = pool.submit(Grammar.from_lark, BOMB, TOKENIZER)
        time.sleep(0.2)
        Grammar.from_regex("a+", TOKENIZER)
        assert not bomb.done()
        assert isinstance(bomb.exception(), UsageError)


def test_killed_checking_process_is_replaced() -> None:
    Grammar.from_regex("a", TOKENIZER)
    check = grammar_tokenizer.grammar_tokenizer(TOKENIZER).check
    process = check._process
    assert process is not None
    process.child.process.kill()
    process.child.process.wait()
    Grammar.from_regex("b", TOKENIZER)
    assert check._process is not process


def test_checking_process_ends_with_its_tokenizer() -> None:
    check = grammar_check.GrammarCheck(TOKENIZER.to_str(), END)
    assert check.bytes_of("start: /a/", "grammar") < 8 << 20
    assert check._process is not None
    child = check._process.child.process
    del check
    assert child.poll() is not None


def test_ordinary_schemas_and_tools_compile() -> None:
    for each in SCHEMAS:
        assert Grammar.from_json_schema(each["schema"], TOKENIZER).bytes < 16 << 20
    tools = [ToolDefinition(f"tool_{number}", each["schema"]) for number, each in enumerate(SCHEMAS[:20])]
    modes: tuple[Mode, ...] = ("auto", "required")
    for mode in modes:
        source = tool_grammar(HERMES, ToolChoice(mode, tools, None), TOKENIZER)
        assert Grammar.from_lark(source, TOKENIZER).bytes < 32 << 20


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "items": {"type": "integer"}, "minItems": 10**9},
        {"type": "string", "minLength": 10**9},
        {"type": "string", "pattern": "^(a|b)*a(a|b){30}$"},
        {"type": "object", "properties": {"self": {"$ref": "#"}, "all": {"type": "array", "items": {"$ref": "#"}}}},
        {"enum": [f"value {number}" for number in range(5000)]},
    ],
)
def test_large_repetition_bounds_are_split(schema: dict[str, Any]) -> None:
    assert len(walk(GrammarConstraint(Grammar.from_json_schema(schema, TOKENIZER), {END}), 1, most=20)) > 1


def test_tokenizer_without_token_bytes_is_rejected() -> None:
    words = Tokenizer(models.WordPiece({"a": 0, "##b": 1, "[UNK]": 2}, unk_token="[UNK]"))  # noqa: S106
    words.pre_tokenizer, words.decoder = pre_tokenizers.Whitespace(), decoders.WordPiece()
    with pytest.raises(UsageError, match=r"^the tokenizer cannot be constrained by a grammar: [^\n]*$"):
        Grammar.json_object(words)


def test_tokenizer_is_converted_once() -> None:
    assert grammar_tokenizer.grammar_tokenizer(TOKENIZER) is grammar_tokenizer.grammar_tokenizer(TOKENIZER)


def test_missing_library_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(MissingExtraError, match=re.escape("pip install 'intaglio[grammar]'")):
        Grammar.json_object(Tokenizer.from_str(TOKENIZER.to_str()))
