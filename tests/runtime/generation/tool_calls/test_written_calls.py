"""Calls that the grammars allow, and calls that Python and templates write: their arguments are what was meant."""

from __future__ import annotations

import json
import random
from functools import cache

import llguidance
import numpy as np
import pytest
from jsonschema import Draft202012Validator
from real_schemas import HAND_WRITTEN, generated
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from written_calls import calls_in

from intaglio.errors import UsageError
from intaglio.runtime.generation.tool_calls.calling import ToolCalling, tool_calling
from intaglio.runtime.generation.tool_calls.formats import FORMATS
from intaglio.runtime.generation.tool_calls.tool_format import ToolCallFormat

SCHEMAS = [*HAND_WRITTEN, *(generated(seed) for seed in range(60))]
BYTES = llguidance.LLTokenizer("byte")
ALPHABET = {character: number for number, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
TOKENIZER = Tokenizer(models.BPE(ALPHABET, []))
TOKENIZER.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
TOKENIZER.decoder = decoders.ByteLevel()
ENDS = [b"\n</parameter>\n", b"</function>", b'"', b"]", b"}", b")", b"\n</tool_call>"]
PREFERRED = b'"}]),:0123456789abcxy{[tfn-.\\<>/='
styles = pytest.mark.parametrize("style", FORMATS, ids=lambda style: style.name)


@cache
def calling_of(style: ToolCallFormat, number: int) -> ToolCalling | None:
    """A request that must call a tool with a schema of the list; None if the format or a grammar cannot have it."""
    tool = {"type": "function", "function": {"name": "t", "parameters": SCHEMAS[number]}}
    try:
        return tool_calling(f"{{{{ tools }}}} {style.signs[0]}", TOKENIZER, [tool], "required", parallel=False)
    except UsageError:
        return None


@cache
def matcher(grammar: str) -> llguidance.LLMatcher:
    made = llguidance.LLMatcher(BYTES, grammar, log_level=0)
    assert not made.is_error(), made.get_error()
    return made


def walk(grammar: str, seed: int, most: int = 400) -> str | None:
    """A random text of a grammar; None if it does not end soon."""
    found, chance = matcher(grammar).deep_copy(), random.Random(seed)
    written = bytearray()
    while len(written) < most and not found.is_stopped() and not found.is_accepting():
        text = chance.choice(ENDS) if chance.random() < 0.3 else b""
        if not text or found.deep_copy().try_consume_tokens(list(text)) < len(text):
            bits = np.unpackbits(np.frombuffer(found.compute_bitmask(), np.uint8), bitorder="little")[:256]
            allowed = [int(each) for each in np.flatnonzero(bits)]
            preferred = [each for each in allowed if each in PREFERRED]
            text = bytes([chance.choice(preferred if preferred and chance.random() < 0.9 else allowed)])
        assert found.try_consume_tokens(list(text)) == len(text)
        written += text
    return written.decode() if found.is_accepting() else None


@styles
def test_texts_of_the_grammar_parse_to_arguments_of_the_schema(style: ToolCallFormat) -> None:
    seen = 0
    for number, schema in enumerate(SCHEMAS):
        calling = calling_of(style, number)
        if calling is None:
            continue
        for seed in range(6):
            text = walk(calling.grammar or "", seed)
            if text is None:
                continue
            parser = calling.parser()
            assert parser is not None
            ((name, arguments),) = calls_in(parser, *text)
            assert name == "t"
            if calling.checks:  # of what the grammar leaves out
                continue
            Draft202012Validator({"type": "object", **schema}).validate(json.loads(arguments))
            seen += 1
    assert seen >= 2 * len(SCHEMAS)
