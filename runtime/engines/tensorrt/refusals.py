"""The nodes that TensorRT rejects: node, operator, reason, and how to fix it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intaglio.bundle import model_file
from intaglio.errors import BuildError
from intaglio.plugins.registry import DOMAIN
from intaglio.plugins.trt import plugin_errors

if TYPE_CHECKING:
    import onnx

ELSEWHERE = "Run this bundle with --target ort-cpu, or change that part of the graph."

# Pattern of "domain::operator: reason" -> advice. The first match applies. {gpu} is the GPU being built for.
ADVICE = [
    (
        r"FP32 GEMM is not supported",
        "Use 16-bit weights (intaglio export --dtype float16, or intaglio compress --recipe float16), "
        "or leave out --gpu {gpu}.",
    ),
    (
        r"libnvinfer_lean",
        "A version-compatible engine holds NVIDIA's lean runtime: pip install tensorrt-lean, in the same version, and "
        "put the folder of its library in LD_LIBRARY_PATH, or leave out --version-compatible.",
    ),
    (
        r"graph_jit\.cpp.*CUDA_SUCCESS",
        "TensorRT-RTX computes with weights that can be replaced while it builds: build on a machine with a GPU, or "
        "leave out --strip-weights and --refit.",
    ),
    (
        r"(?i)\bworkspace\b",
        "Raise --workspace, or lower the largest lengths with --batch MIN:OPT:MAX and --sequence MIN:OPT:MAX.",
    ),
    (
        rf"^{DOMAIN}::",
        "This TensorRT does not accept intaglio's plugin: use --no-plugins, which puts standard operators in its "
        "place, or --target ort-cpu.",
    ),
    (
        r"^::(DynamicQuantizeLinear|MatMulInteger|ConvInteger|QLinear\w+):",
        "Quantise with QuantizeLinear and DequantizeLinear around MatMul instead, or use --target ort-cpu.",
    ),
    (
        r"(?i)data ?type|import initializer",
        "Cast to float16, float32, int32 or int64 in the graph, or use --target ort-cpu.",
    ),
    (
        r"(?i)out of memory|insufficient (device )?memory|OutOfMemory",
        "Lower the largest lengths with --batch MIN:OPT:MAX and --sequence MIN:OPT:MAX, or free the GPU's memory.",
    ),
]

# The parser's error code -> the reason, for errors without a message (an assertion on `false`).
REASON_OF_CODE = {
    "UNSUPPORTED_NODE": "TensorRT has no such operator",
    "UNSUPPORTED_NODE_ATTR": "an attribute's value is not supported",
    "UNSUPPORTED_NODE_DATATYPE": "the data type is not supported",
    "UNSUPPORTED_NODE_DYNAMIC": "not supported with symbolic axes",
    "UNSUPPORTED_NODE_INPUT": "an input is not supported",
    "UNSUPPORTED_NODE_SHAPE": "the shape is not supported",
}

# The parts that TensorRT adds around its reasons -> the part to keep; applied in this order.
WRAPPINGS = [
    (r"^.*Error Code \d+: [\w ]+\((.*?)(?: In \w+ at \S+)?\)$", r"\1"),  # the builder's function, code, source file
    (r"^\[[^\]]+:\d+: \w+\] ", ""),  # a compiler pass's source file and function
    (r"^Cannot compile operation '[^']*' for ", ""),  # the node, which the message already names
    (r'^.*&& "([^"]+)"$', r"\1"),  # the parser's condition and its text
    (r"^.*Assertion failed: .*?: ", ""),
    (r"^Plugin not found,.*", "TensorRT has no such operator, and no plugin of that name"),
]


@dataclass(frozen=True)
class Refusal:
    """A node or graph that TensorRT rejects, and why."""

    node: str  # "" for the graph as a whole
    operator: str
    reason: str
    domain: str = ""

    def __str__(self) -> str:
        place = f"node {self.node} ({self.operator})" if self.node else self.operator
        return f"{place}: {self.reason}" if place else self.reason

    def advice(self, gpu: str) -> str:
        """How to fix it."""
        text = f"{self.domain}::{self.operator}: {self.reason}"
        return next((advice for pattern, advice in ADVICE if re.search(pattern, text)), ELSEWHERE).format(gpu=gpu)


def error(library: str, gpu: str, refusals: Sequence[Refusal]) -> BuildError:
    """The error for `refusals` (at least one): the first with its advice, the others counted and named."""
    first, *others = refusals
    more = f" ({len(others)} more: {_listed(others)})" if others else ""
    return BuildError(f"{library} cannot build for {gpu}: {first}{more}. {first.advice(gpu)}")


def _listed(refusals: Sequence[Refusal], shown: int = 4) -> str:
    names = [f"{refusal.node} ({refusal.operator})" if refusal.node else refusal.reason for refusal in refusals]
    return ", ".join(names[:shown]) + (", …" if len(names) > shown else "")


def of_parser(parser: Any, model: Path) -> list[Refusal]:
    """The errors of an `OnnxParser` after it failed on the ONNX file `model`."""
    nodes = model_file.parse(model).graph.node
    errors = [parser.get_error(index) for index in range(parser.num_errors)]
    found = [_of_parser_error(each, nodes) for each in errors] or [Refusal("", "", "the parser gave no reason")]
    if messages := plugin_errors():  # the parser says only that a plugin was not made
        found[0] = replace(found[0], reason="; ".join(messages))
    return found


def _of_parser_error(found: Any, nodes: Sequence[onnx.NodeProto]) -> Refusal:
    operator = found.node_operator()
    reason = (
        REASON_OF_CODE.get(found.code().name, found.code().name)
        if found.desc() == "false"
        else clean_message(found.desc())
    )
    index = found.node()  # into the graph's nodes, or into those of a function or a branch
    if 0 <= index < len(nodes) and nodes[index].op_type == operator:
        node = nodes[index]
        return Refusal(node.name or f"with output {node.output[0]}", operator, reason, node.domain)
    return Refusal(found.node_name() or ("without a name" if operator else ""), operator, reason)


def of_builder(errors: Sequence[str], model: Path) -> list[Refusal]:
    """The reasons of a failed build, from the error lines that the builder logged for the ONNX file `model`."""
    if messages := plugin_errors():
        return [Refusal("", "", "; ".join(messages), DOMAIN)]
    if not errors:
        return [Refusal("", "", "the builder gave no reason")]
    # Without a GPU, it logs other, harmless errors before the relevant one.
    message = next((line for line in errors if "Cannot compile operation" in line), errors[-1])
    nodes = {node.name: node for node in model_file.parse(model).graph.node if node.name}
    quoted = re.findall(r"'([^']+)'|\[([^\[\]]+)\]|\bnode (\S+)", message)
    mentioned = [name for groups in quoted for group in groups for name in re.split(r"\.\.\.| \+ |, ", group)]
    candidates = [*mentioned, *(re.sub(r"_\d+$", "", name) for name in mentioned)]  # fused nodes get a number
    node = next((nodes[name] for name in candidates if name in nodes), None)
    if node is None:
        return [Refusal("", "", clean_message(message))]
    return [Refusal(node.name, node.op_type, clean_message(message), node.domain)]


def clean_message(message: str) -> str:
    """TensorRT's message on one line, without its own functions, conditions and source files."""
    text = " ".join(message.split())
    for pattern, replacement in WRAPPINGS:
        text = re.sub(pattern, replacement, text)
    return text.rstrip(" .!")
