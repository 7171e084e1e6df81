"""A model's config.pbtxt: protobuf's text format of Triton's message `ModelConfig`.

It is written without Triton's package of protobuf classes, `tritonclient`, which needs other versions of protobuf than
ONNX has; the tests parse what is written with that package.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Message = Mapping[str, Any]  # field -> value: text, number, bool, `Word`, message, or a list of them for each
ReadMessage = dict[str, list[Any]]  # field -> its values in order: messages, and other values in their spelling
TOKEN = re.compile(r"""\s+|#.*|("(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|[{}<>\[\]:;,]|[^\s{}<>\[\]:;,#"']+)""")

# NumPy's name of a dtype -> Triton's.
DATA_TYPES = {
    "bool": "TYPE_BOOL",
    "float16": "TYPE_FP16",
    "float32": "TYPE_FP32",
    "int32": "TYPE_INT32",
    "int64": "TYPE_INT64",
    "str": "TYPE_STRING",
}


class Word(str):
    """A value of an enumeration, which is not quoted."""


def text_format(message: Message) -> str:
    """The message in protobuf's text format, a field on each line."""
    return "".join(f"{line}\n" for line in _lines(message))


def _lines(message: Message, indent: str = "") -> Iterator[str]:
    for name, value in message.items():
        for each in value if isinstance(value, list | tuple) else [value]:
            if isinstance(each, Mapping):
                yield f"{indent}{name} {{"
                yield from _lines(each, indent + "  ")
                yield f"{indent}}}"
            else:
                yield f"{indent}{name}: {_scalar(each)}"


def _scalar(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Word):
        return value
    return json.dumps(value, ensure_ascii=False)


def read_text_format(text: str) -> ReadMessage:
    """The message in protobuf's text format, also as others write it. Raises `ValueError` for anything else."""
    tokens: list[str] = []
    end = 0
    while end < len(text):
        if (found := TOKEN.match(text, end)) is None:
            raise ValueError(f"line {text.count(chr(10), 0, end) + 1}: a string has no end")
        end = found.end()
        if found[1]:
            tokens.append(found[1])
    tokens.append("")
    return _read_message(tokens[::-1], "")


def _read_message(tokens: list[str], end: str) -> ReadMessage:
    """The fields up to the token `end`; `tokens`: those that are left, the next one last."""
    found: ReadMessage = {}
    while (name := tokens.pop()) != end:
        if not re.fullmatch(r"\w+", name):
            raise ValueError(f"got {name or 'the end'!r}, expected a field")
        if tokens[-1] == ":":
            tokens.pop()
        found.setdefault(name, []).extend(_read_values(tokens))
        if tokens[-1] in (",", ";"):
            tokens.pop()
    return found


def _read_values(tokens: list[str]) -> list[Any]:
    """The values of a field: more than one in a list."""
    first = tokens.pop()
    if first in ("{", "<"):
        return [_read_message(tokens, "}" if first == "{" else ">")]
    if first == "[":
        values: list[Any] = []
        while tokens[-1] != "]":
            values += _read_values(tokens)
            if tokens[-1] == ",":
                tokens.pop()
        tokens.pop()
        return values
    if first in ("", "}", ">", "]", ":", ";", ","):
        raise ValueError(f"got {first or 'the end'!r}, expected a value")
    return [first]


def tensor(name: str, dtype: str, dims: Sequence[int], **more: Any) -> Message:
    """An input or output: NumPy's name of its dtype, and its axes without the batch; -1: any length."""
    return {"name": name, "data_type": Word(DATA_TYPES[dtype]), "dims": list(dims), **more}


def parameters(values: Mapping[str, Any]) -> list[Message]:
    """The field `parameters`: those that are not None, as text."""
    return [
        {"key": key, "value": {"string_value": value if isinstance(value, str) else json.dumps(value)}}
        for key, value in values.items()
        if value is not None
    ]


def string_bytes(text: str) -> bytes:
    """A tensor of one text as Triton reads it from a file: the length, little-endian in 4 bytes, and UTF-8."""
    encoded = text.encode()
    return len(encoded).to_bytes(4, "little") + encoded
