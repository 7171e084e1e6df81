"""Write the signatures of the operators as C++: their declarations for ONNX Runtime, and their kernels.

`build.py` compiles the result into the library. It covers every folder of plugins/ that has a signature.py and an
ort_binding.cpp, and declares the factory functions `create_<folder>`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping

from intaglio.plugins.signature import Attribute, By, Input, Like, Output, Signature

# Kind of an attribute -> its type in C++.
KINDS = {int: "int64_t", float: "float", str: "std::string"}

HEAD = """\
// Every operator's schema and maker, written by plugins/ort/schemas.py: change plugins/<operator>/signature.py.
#pragma once

#include "plugins/ort/operator.h"

namespace intaglio::ort {
"""
TAIL = """\
};

}  // namespace intaglio::ort
"""


def header(signatures: Mapping[str, Signature], selecting: Collection[str]) -> str:
    """The header of all operators, by folder; those of the folders `selecting` choose among micro-kernels."""
    lines = [HEAD]
    for folder in signatures:
        lines.append(f"std::unique_ptr<Kernel> create_{folder}(const Node& node);")
        if folder in selecting:
            lines.append(f"bool select_{folder}(Isa isa, const MicroKernelWish& wish);")
    lines += ["", "inline const std::vector<Operator> OPERATORS = {"]
    for folder, signature in signatures.items():
        select = f"select_{folder}" if folder in selecting else "nullptr"
        lines += [
            f"    {{{json.dumps(signature.name)},",
            f"     {json.dumps(folder)},",
            f"     {_list(map(_input, signature.inputs))},",
            f"     {_list(_output(signature, output) for output in signature.outputs)},",
            f"     {_list(map(_attribute, signature.attributes))},",
            f"     create_{folder},",
            f"     {select}}},",
        ]
    return "\n".join(lines) + "\n" + TAIL


def _list(items: Iterable[str]) -> str:
    return "{" + ", ".join(items) + "}"


def _input(spec: Input) -> str:
    return f"{{{json.dumps(spec.name)}, {_dtypes(spec.dtypes)}, {_bool(spec.optional)}}}"


def _output(signature: Signature, output: Output) -> str:
    like = signature.inputs.index(signature.input(output.dtype.input)) if isinstance(output.dtype, Like) else -1
    attribute, choices = "nullptr", "{}"
    if isinstance(output.dtype, By):
        chosen = signature.attribute(output.dtype.attribute)
        attribute = json.dumps(chosen.name)
        choices = _list(
            f"{{{value}, {_dtype(dtype)}}}"
            for value, dtype in output.dtype.dtypes.items()
            if not chosen.choices or value in chosen.choices
        )
    types = _dtypes(signature.dtypes(output))
    return f"{{{json.dumps(output.name)}, {types}, {_bool(output.optional)}, {like}, {attribute}, {choices}}}"


def _attribute(attribute: Attribute) -> str:
    required = attribute.default is None
    default = _value(attribute, attribute.kind() if attribute.default is None else attribute.default)
    choices = _list(_value(attribute, choice) for choice in attribute.choices)
    return f"{{{json.dumps(attribute.name)}, {_bool(required)}, {default}, {choices}}}"


def _value(attribute: Attribute, value: float | str) -> str:
    return f"{KINDS[attribute.kind]}({json.dumps(value)})"


def _dtypes(dtypes: Collection[str]) -> str:
    return _list(map(_dtype, dtypes))


def _dtype(dtype: str) -> str:
    return f"DType::{'boolean' if dtype == 'bool' else dtype}"


def _bool(value: bool) -> str:
    return "true" if value else "false"
