"""Nodes with attributes or tensors that no exporter writes: each prints one line, none crashes or stalls."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from operator_cases import Case, factors, indices, int8

from intaglio.plugins import OPS, ort
from intaglio.plugins.kernel_check.node_model import feeds, node_model

onnxruntime = pytest.importorskip("onnxruntime")
ir = pytest.importorskip("onnx_ir")
onnx = pytest.importorskip("onnx")

SECONDS = 120  # for all nodes together on a busy machine; one takes milliseconds
MEBIBYTES = 128  # limit for a node without elements; ONNX Runtime needs some to open its model
# Opens and runs the model of each folder on an instruction set, stores the output, and prints the message of ONNX
# Runtime and the growth of the process's peak memory in MiB; a crash of a kernel is a crash of this process.
CHILD = """
import os, pathlib, sys
import numpy, onnxruntime
from intaglio.plugins import ort
ort.library = pathlib.Path(sys.argv[1]).resolve
def most():
    if not os.path.exists("/proc/self/status"):
        return 0
    lines = open("/proc/self/status").read().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) // 1024
for isa, folder in zip(sys.argv[2::2], sys.argv[3::2]):
    os.environ["INTAGLIO_ISA"] = isa
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 2
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # a test may have one processor
    ort.register(options)
    before = most()
    try:
        session = onnxruntime.InferenceSession(folder + "/model.onnx", options, providers=["CPUExecutionProvider"])
        output, *_ = session.run(None, dict(numpy.load(folder + "/feeds.npz")))
        if output.size:
            numpy.save(folder + "/output.npy", output)
    except Exception as error:
        message = str(error)
    else:
        message = "ran"
    print(repr((message, most() - before)), flush=True)
"""


@dataclass(frozen=True)
class Hostile:
    """A valid case, the attributes that are changed in its model, and a pattern of the expected message."""

    case: Case
    message: str
    attributes: dict[str, Any] = field(default_factory=dict)
    constants: bool = True
    isa: str = ""


def random() -> np.random.Generator:
    return np.random.default_rng(0)


def int32(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def floats(*shape: int) -> np.ndarray:
    return random().standard_normal(shape).astype(np.float32)


def lut() -> Case:
    return Case("LutMatMul", (floats(2, 32), indices(random(), 5, 32, 3)[:, :3], floats(5, 8)), {"bits": 3, "K": 32})


def group() -> Case:
    attributes = {"bits": 4, "K": 64, "group_size": 32}
    return Case("GroupMatMul", (floats(2, 64), indices(random(), 5, 64, 4), floats(5, 2)), attributes)


def levels(bits: int, count: int, zero_points: np.ndarray | None = None) -> Case:
    """A weight whose codes stand for `count` levels."""
    attributes = {"bits": bits, "K": 64, "group_size": 32}
    packed = indices(random(), 5, 64, bits)
    return Case("GroupMatMul", (floats(2, 64), packed, floats(5, 2), zero_points, floats(count)), attributes)


def minimums(*shape: int, levels: int = 0) -> Case:
    """A weight with minimums of `shape`, and with levels beside them."""
    attributes = {"bits": 4, "K": 64, "group_size": 32}
    beside = floats(levels) if levels else None
    inputs = (floats(2, 64), indices(random(), 5, 64, 4), floats(5, 2), None, beside, floats(*shape))
    return Case("GroupMatMul", inputs, attributes)


def csr(values: int, columns: np.ndarray, offsets: np.ndarray, depth: int = 4) -> Case:
    rows = len(offsets) - 1
    return Case("CsrMatMul", (floats(2, depth), floats(values), columns, offsets, floats(2, max(rows, 0))), {})


def lut_with(values: int, columns: np.ndarray | None, offsets: np.ndarray) -> Case:
    """A weight of two rows of 32 values, and a sparse matrix."""
    dense = floats(3, 32), indices(random(), 2, 32, 3), floats(2, 8)
    return Case("LutMatMul", (*dense, floats(values), columns, offsets), {"bits": 3, "K": 32})


def attention(width: int = 12) -> Case:
    inputs = [int8(random(), 1, 2, width) for _ in range(3)]
    return Case("IntAttention", (*inputs, *factors(random(), 1, False)), {"num_heads": 1, "scale": 0.1, "packed": 1})


def cached(**attributes: int) -> Case:
    """Attention to slots: of 8 bits and a depth of 4, by default."""
    slots = np.zeros((1, 1, 3, 8), np.uint8)
    attributes = {"key_bits": 8, "value_bits": 8, "value_depth": 4} | attributes
    return Case("CachedAttention", (floats(1, 1, 2, 4), slots, slots, np.ones((1, 1, 2, 3), np.bool_)), attributes)


def low_rank(**arrays: np.ndarray) -> Case:
    """Two rows of three tokens, four adapters of rank 5."""
    given: dict[str, np.ndarray] = {
        "x": floats(2, 3, 8),
        "first": floats(4, 5, 8),
        "second": floats(4, 5, 6),
        "factor": floats(4),
        "adapter": int32(3, 0),
        "scale": floats(2, 1, 1),
        "y": floats(2, 3, 6),
    }
    return Case("LowRankMatMul", tuple((given | arrays).values()), {})


def rotary(positions: int = 5) -> Case:
    tables = [np.ones((positions, 2), np.int32)] * 2
    return Case("IntRotary", (np.ones((3, 5, 8), np.int32), *tables, *factors(random(), 1, False)), {"num_heads": 2})


def norm(**scales: float) -> Case:
    attributes = {"scale": 0.1, "weight_scale": 0.1, "bias_scale": 0.1, "out_scale": 0.1, **scales}
    x = random().integers(-1000, 1000, (3, 40)).astype(np.int32)
    return Case("IntLayerNorm", (x, np.ones(40, np.int32), np.ones(40, np.int32)), attributes)


WRAPS = (2**64 + 32) // 3  # times 3, in 64 bits, it is 32
HOSTILE = {
    "K times bits wraps to one word": Hostile(lut(), "K: 6148914691236517216, expected a multiple of 32", {"K": WRAPS}),
    "the same as an input": Hostile(lut(), "K: 6148914691236517216, expected", {"K": WRAPS}, constants=False),
    "K of no word": Hostile(lut(), "packed: shape .* expected .N, 0.", {"K": 0}),
    "a negative K": Hostile(lut(), "K: -32, expected a multiple of 32", {"K": -32}),
    "a group's K wraps": Hostile(group(), "K: 4611686018427387968, expected", {"K": 2**62 + 64}),
    "a huge group": Hostile(group(), "group_size: 4611686018427387904, expected", {"group_size": 2**62}),
    "a negative group": Hostile(group(), "group_size: -32, expected", {"group_size": -32}),
    "too few levels": Hostile(levels(8, 255), r"levels: shape .255., expected .256."),
    "minimums of rows first": Hostile(minimums(5, 2), r"minimums: shape .5, 2., expected .2, 5."),
    "minimums beside levels": Hostile(minimums(2, 5, levels=16), "minimums: given beside levels", constants=False),
    "minimums beside levels as constants": Hostile(minimums(2, 5, levels=16), "minimums: given beside levels"),
    "zero points beside levels as constants": Hostile(
        levels(4, 16, np.ones((5, 2), np.uint8)), "zero_points: given beside levels"
    ),
    "levels of 5 bits": Hostile(levels(5, 32), "levels: with bits=5, expected 4 or 8"),
    "levels beside zero points": Hostile(
        levels(4, 16, np.ones((5, 2), np.uint8)), "zero_points: given beside levels", constants=False
    ),
    "no bits": Hostile(group(), "bits: 0, expected 2, 3, 4, 5, 6 or 8", {"bits": 0}),
    "bits beyond a shift": Hostile(lut(), "bits: 64, expected 2, 3 or 4", {"bits": 64}),
    "three times the heads wraps to 2": Hostile(
        attention(), "num_heads: 6148914691236517206, expected 1 to 65536", {"num_heads": (2**64 + 2) // 3}
    ),
    "three times the heads wraps to 0": Hostile(attention(), "num_heads: -", {"num_heads": -(2**63)}),
    "no heads": Hostile(attention(), "num_heads: 0, expected", {"num_heads": 0}),
    "a negative column": Hostile(csr(2, int32(0, -1), int32(0, 1, 2)), "columns: -1, expected 0 or more"),
    "a column beyond x": Hostile(csr(2, int32(0, 2**31 - 1), int32(0, 1, 2)), "more channels than column 2147483647"),
    "offsets beyond the values": Hostile(csr(2, int32(0, 1), int32(0, 2**31 - 1)), "do not ascend from 0 to the 2"),
    "offsets that descend": Hostile(csr(2, int32(0, 1), int32(0, 2**31 - 1, 2)), "do not ascend from 0 to the 2"),
    **{
        f"{name} of a table's sparse values, {'as constants' if constants else 'computed'}": Hostile(
            case, message, constants=constants
        )
        for constants in (False, True)
        for name, (case, message) in {
            "a negative column": (lut_with(2, int32(0, -1), int32(0, 1, 2)), "columns: -1, expected 0 or more"),
            "a column beyond K": (lut_with(2, int32(0, 32), int32(0, 1, 2)), "columns: 32, expected less than 32 .K."),
            "too few offsets": (lut_with(2, int32(0, 1), int32(0, 2)), "row_offsets: of 1 rows, expected 2"),
            "too many offsets": (lut_with(2, int32(0, 1), int32(0, 1, 2, 2)), "row_offsets: of 3 rows, expected 2"),
            "offsets beyond": (lut_with(2, int32(0, 1), int32(0, 1, 2**31 - 1)), "do not ascend from 0 to the 2"),
            "offsets swapped": (lut_with(2, int32(0, 1), int32(0, 3, 2)), "do not ascend from 0 to the 2"),
            "fewer columns": (lut_with(2, int32(0), int32(0, 1, 2)), r"columns .1., .*: expected .nnz., .nnz., .N.1."),
            "no columns": (lut_with(2, None, int32(0, 1, 2)), "values, columns and row_offsets: expected all or none"),
        }.items()
    },
    "no offsets": Hostile(csr(0, int32(), int32()[:0]), r"row_offsets \[0\]: expected"),
    "a scale of 0": Hostile(norm(), "scales: expected positive numbers", {"scale": 0.0}),
    "an infinite scale": Hostile(norm(), "scales: expected positive numbers", {"out_scale": float("inf")}),
    "a group beyond what sums of 32 bits hold": Hostile(
        group(), "group_size: 131072, expected a multiple of 16, at most 65536", {"K": 2**17, "group_size": 2**17}
    ),
    "rotary heads that wrap to 2": Hostile(
        rotary(), "num_heads: 6148914691236517206, expected", {"num_heads": (2**64 + 2) // 3}
    ),
    "no rotary heads": Hostile(rotary(), "num_heads: 0, expected 1 to 65536", {"num_heads": 0}),
    "halves that do not divide": Hostile(rotary(), "x: 8 channels do not divide into 3 heads", {"num_heads": 3}),
    "angles of other heads": Hostile(rotary(), r"cosine: shape \[5, 2\], expected \[5, 4\]", {"num_heads": 1}),
    "too few angles": Hostile(rotary(4), r"cosine: shape \[4, 2\], expected \[5, 2\]", constants=False),
    "slots and floats": Hostile(cached(), "key_bits, value_bits, value_depth: 8, 32, 4, expected", {"value_bits": 32}),
    "no depth of slots": Hostile(cached(), "value_depth: 8, 8, 0, expected 32, 32, 0, or", {"value_depth": 0}),
    "a negative depth of slots": Hostile(cached(), "value_depth: 8, 8, -4, expected", {"value_depth": -4}),
    "a depth that overflows": Hostile(
        cached(), r"8, 8, 4611686018427387904, expected .* up to 2\^20", {"value_depth": 2**62}
    ),
    "slots of another depth": Hostile(cached(), "value: 8 entries a slot, expected 12", {"value_depth": 8}),
    "slots of other bits": Hostile(cached(), "value: 8 entries a slot, expected 20", {"value_bits": 4}),
    "slots as floats": Hostile(cached(), "expected", {"key_bits": 32, "value_bits": 32, "value_depth": 0}),
    "rows without channels": Hostile(
        Case("QuantizeCache", (floats(2, 0),), {"bits": 8}),
        r"x: shape \[2, 0\], expected rows of at least 1",
        constants=False,
    ),
    "slots of 5 bits": Hostile(
        Case("QuantizeCache", (floats(2, 3),), {"bits": 8}), "bits", {"bits": 5}, constants=False
    ),
    "an adapter beyond the last": Hostile(low_rank(adapter=int32(3, 4)), "adapter: 4, expected 0 to 3"),
    "a negative adapter": Hostile(low_rank(adapter=int32(-1, 0)), "adapter: -1, expected 0 to 3", constants=False),
    "too few adapters": Hostile(low_rank(adapter=int32(1)), r"adapter: shape \[1\], expected \[2\]"),
    "a matrix for all adapters": Hostile(low_rank(first=floats(5, 8)), r"first: shape \[5, 8\], expected \[adapters, "),
    "x of other channels": Hostile(low_rank(x=floats(2, 3, 9)), r"x: shape .2, 3, 9., expected .batch, tokens, 8."),
    "matrices of other ranks": Hostile(
        low_rank(second=floats(4, 4, 6)), r"second: shape .4, 4, 6., expected .4, 5, ch"
    ),
    "matrices of fewer adapters": Hostile(
        low_rank(second=floats(3, 5, 6)), r"second: shape .3, 5, 6., expected .4, 5, ch"
    ),
    "factors of fewer adapters": Hostile(low_rank(factor=floats(3)), r"factor: shape \[3\], expected \[4\]"),
    "a scale for all rows": Hostile(low_rank(scale=floats(1, 1, 1)), r"scale: shape .1, 1, 1., expected .2, 1, 1."),
    "y of other channels": Hostile(low_rank(y=floats(2, 3, 7)), r"y: shape .2, 3, 7., expected .2, 3, 6."),
    "a weight of three axes": Hostile(
        Case("PackedMatMul", (floats(2, 3), floats(1, 3, 4)), {}), r"weight: shape .1, 3, 4., expected two axes"
    ),
    "x of another depth": Hostile(
        Case("PackedMatMul", (floats(2, 4), floats(3, 4)), {}),
        r"x: shape .2, 4., expected .\.\.\., 3.",
        constants=False,
    ),
    "an epsilon of NaN": Hostile(norm(), "epsilon: expected 0 or a positive number", {"epsilon": float("nan")}),
}
# Tensors without elements may have axes of any length: nothing may loop over them or allocate memory for them.
LONG = 2**27  # one int32 for each of these is 512 MiB
EMPTY = {
    "IntGelu": Case("IntGelu", (np.zeros((2**40, 0), np.int32),), {"scale": 0.1, "out_scale": 0.1}),
    "IntSoftmax": Case("IntSoftmax", (np.zeros((2**40, 0), np.int32),), {"scale": 0.1, "out_scale": 0.1}),
    "Requantize": Case("Requantize", (np.zeros((2**40, 0), np.int32), int32(1), int32(1)), {"bits": 8}),
    "IntAdd": Case("IntAdd", (np.zeros((2**40, 0), np.int32),) * 2 + (int32(1),) * 3, {"bits": 8}),
    "IntLinear": Case(
        "IntLinear", (np.zeros((2**40, 0), np.int8), np.zeros((0, 0), np.int8), int32()[:0]), {"bits": 32}
    ),
    "IntMatMul": Case("IntMatMul", (np.zeros((2**40, 3, 0), np.int8), np.zeros((2**40, 0, 0), np.int8)), {"bits": 32}),
    "IntAttention": Case(
        "IntAttention",
        tuple(np.zeros((2**40, 3, 0), np.int8) for _ in range(3)) + (int32(1),) * 2,
        {"num_heads": 4, "scale": 0.1},
    ),
    "IntRotary": Case(
        "IntRotary",
        (np.zeros((2**40, 3, 0), np.int32), *(np.zeros((3, 0), np.int32),) * 2, int32(1), int32(1)),
        {"num_heads": 4},
    ),
    "IntRotary of no positions": Case(
        "IntRotary",
        (np.zeros((1, 0, LONG), np.int32), *(np.zeros((0, LONG // 8), np.int32),) * 2, int32(1), int32(1)),
        {"num_heads": 4},
    ),
    "LutMatMul": Case(
        "LutMatMul",
        (np.zeros((2**40, 0, 32), np.float32), np.zeros((5, 3), np.int32), floats(5, 8)),
        {"bits": 3, "K": 32},
    ),
    "LowRankMatMul": low_rank(
        x=np.zeros((2, 2**40, 0), np.float32),
        first=np.zeros((4, 2**40, 0), np.float32),
        second=np.zeros((4, 2**40, 0), np.float32),
        y=np.zeros((2, 2**40, 0), np.float32),
    ),
    "LowRankMatMul of no rank": low_rank(first=np.zeros((4, 0, 8), np.float32), second=np.zeros((4, 0, 6), np.float32)),
    "PackedMatMul": Case("PackedMatMul", (np.zeros((2**40, 0), np.float32), np.zeros((0, 0), np.float32)), {}),
    "PackedMatMul of no rows": Case(
        "PackedMatMul", (np.zeros((0, 0), np.float32), np.zeros((0, 2**40), np.float32)), {}
    ),
    "LutMatMul of no depth": Case(
        "LutMatMul", (np.zeros((2**40, 0), np.float32), np.zeros((0, 0), np.int32), floats(0, 8)), {"bits": 3, "K": 0}
    ),
    "GroupMatMul": Case(
        "GroupMatMul",
        (np.zeros((2**40, 0, 32), np.float32), np.zeros((5, 4), np.int32), floats(5, 1)),
        {"bits": 4, "K": 32, "group_size": 32},
    ),
    "GroupMatMul of no depth": Case(
        "GroupMatMul",
        (np.zeros((0, 0), np.float32), np.zeros((2**36, 0), np.int32), np.zeros((2**36, 0), np.float32)),
        {"bits": 4, "K": 0, "group_size": 32},
    ),
    "CsrMatMul": Case(
        "CsrMatMul",
        (np.zeros((2**40, 0), np.float32), floats(0), int32(), int32(0), np.zeros((2**40, 0), np.float32)),
        {},
    ),
    "QuantizeCache of no rows": Case("QuantizeCache", (np.zeros((0, LONG), np.float32),), {"bits": 4}),
    "IntGelu of no rows": Case("IntGelu", (np.zeros((0, LONG), np.int32),), {"scale": 0.1, "out_scale": 0.1}),
    "IntGelu of no rows with factors": Case(
        "IntGelu", (np.zeros((0, LONG), np.int32), int32(1), int32(1)), {"scale": 0.1, "out_scale": 0.1}
    ),
    "Requantize of no rows": Case("Requantize", (np.zeros((0, LONG), np.int32), int32(1), int32(1)), {"bits": 8}),
    "IntAdd of no rows": Case("IntAdd", (np.zeros((0, LONG), np.int32),) * 2 + (int32(1),) * 3, {"bits": 8}),
    "IntMatMul of no rows": Case(
        "IntMatMul", (np.zeros((0, 0), np.int8), np.zeros((0, LONG), np.int8), int32(1), int32(1)), {"bits": 8}
    ),
    "IntAttention of no queries": Case(
        "IntAttention",
        tuple(np.zeros((1, 0, LONG), np.int8) for _ in range(3)) + (int32(1),) * 2,
        {"num_heads": 2**12, "scale": 0.1},
    ),
    "CsrMatMul of no rows": Case(
        "CsrMatMul",
        (np.zeros((0, LONG), np.float32), floats(2), int32(0, 1), int32(0, 2), np.zeros((0, 1), np.float32)),
        {},
    ),
    "LutMatMul of no rows": Case(
        "LutMatMul",
        (np.zeros((0, LONG), np.float32), np.zeros((0, LONG // 32 * 3), np.int32), floats(0, 8)),
        {"bits": 3, "K": LONG},
    ),
}
EMPTY_NODES = {name: Hostile(case, "^ran$", constants=False) for name, case in EMPTY.items()} | {
    f"{name} as constants": Hostile(EMPTY[name], "^ran$")
    for name in ("GroupMatMul of no depth", "LutMatMul of no depth")
}


def bytes_of(mask: np.ndarray) -> np.ndarray:
    """`mask` with bytes other than 0 and 1, as in a file."""
    return (mask * random().integers(2, 256, mask.shape)).astype(np.uint8).view(np.bool_)


def masked() -> Iterator[Case]:
    """Every form of mask with such bytes."""
    queries, keys = 5, 600
    for shape in [(1, 1, 1, keys), (1, 2, queries, keys), (1, 2, queries, 1)]:
        inputs = (*(int8(random(), 1, length, 32) for length in (queries, keys, keys)), *factors(random(), 1, False))
        mask = bytes_of(random().random(shape) < 0.5)
        yield Case("IntAttention", (*inputs, mask), {"num_heads": 2, "scale": 1e-3})
    for shape in [(7, 70), (1, 70), (7, 1)]:
        x = random().integers(-1000, 1000, (7, 70)).astype(np.int32)
        yield Case("IntSoftmax", (x, bytes_of(random().random(shape) < 0.5)), {"scale": 0.01, "out_scale": 1 / 127})


# These run, and equal the reference on every instruction set.
EXACT = {
    f"{case.operator} {index} on {isa}": Hostile(case, "^ran$", constants=False, isa=isa)
    for isa in ort.supported_instruction_sets()
    for index, case in enumerate([*masked(), norm(weight_scale=1e-38)])
}
ALL = {**HOSTILE, **EMPTY_NODES, **EXACT}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A folder for each of `ALL`, with its model and its inputs."""
    made = {name: tmp_path_factory.mktemp("node") for name in ALL}
    for name, folder in made.items():
        write(ALL[name], folder)
    return made


@pytest.fixture(scope="module")
def results(folders):
    """The message of ONNX Runtime for each of `ALL`, and the MiB that it took, in a separate process; nodes after a
    crash are missing."""
    nodes = [argument for name, folder in folders.items() for argument in (ALL[name].isa, str(folder))]
    command = [sys.executable, "-c", CHILD, str(ort.library()), *nodes]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        output = process.communicate(timeout=SECONDS)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        output = process.communicate()[0]
    return dict(zip(ALL, map(ast.literal_eval, output.splitlines()), strict=False))


def write(hostile: Hostile, folder: Path) -> None:
    """Write the model of the case with changed attributes, and its inputs."""
    proto = ir.to_proto(node_model(hostile.case, hostile.constants))
    node = proto.graph.node[0]
    kept = [attribute for attribute in node.attribute if attribute.name not in hostile.attributes]
    del node.attribute[:]
    changed = [onnx.helper.make_attribute(name, value) for name, value in hostile.attributes.items()]
    node.attribute.extend([*kept, *changed])
    (folder / "model.onnx").write_bytes(proto.SerializeToString())
    np.savez(folder / "feeds.npz", **feeds(hostile.case, hostile.constants))


@pytest.mark.parametrize("name", ALL)
def test_invalid_node_prints_one_line_and_crashes_nothing(name, results):
    assert name in results, "the process ended, or stalled, before or at this node"
    line, _ = results[name]
    assert re.search(ALL[name].message, line), line
    assert "\n" not in line


@pytest.mark.parametrize("name", EMPTY_NODES)
def test_node_without_elements_allocates_no_memory(name, results):
    assert name in results, "the process ended, or stalled, before or at this node"
    assert results[name][1] < MEBIBYTES


@pytest.mark.parametrize("name", EXACT)
def test_unusual_mask_bytes_and_scales_equal_the_reference(name, results, folders):
    assert name in results, "the process ended, or stalled, before or at this node"
    case = ALL[name].case
    mask = case.inputs[-1]
    inputs = case.inputs if mask is None or mask.dtype != np.bool_ else (*case.inputs[:-1], mask.view(np.uint8) != 0)
    expected = OPS[case.operator].reference(inputs, case.attributes)[0]
    np.testing.assert_array_equal(np.load(folders[name] / "output.npy"), expected)
