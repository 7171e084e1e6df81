"""Speed of one matrix-vector product with compressed weights, against the memory's read bandwidth and MatMulNBits.

    python -m benchmarks.weights.weight_matmul [--threads 1 2] [--rounds 15] [--levels]

With --levels, the contestants are codes that stand for levels, beside equal steps and float32.

Each contestant is a model of equal layers with separate weights, too large for any cache; x is float32, one
token. Every round runs all contestants and reads a block of memory with the same number of threads; results are medians
over the rounds, ratios compare within one round. `bandwidth` is what part of the read bandwidth the bytes of the
indices alone reach.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from intaglio.plugins import DOMAIN, ort
from intaglio.plugins.bit_packing import pack
from intaglio.plugins.native.memory_bandwidth import Memory

SHAPES = ((4096, 4096), (4096, 11008))  # K, N
BYTES = 160 << 20  # of indices that a model's layers have at least, several times the last cache
SPARSE = 0.0045
LEVELS = {
    "NF4": np.linspace(-1, 1, 16, dtype=np.float32) ** 3,  # as uneven as its numbers
    "MXFP4": np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32),
    "FP8": np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32),
}

Nodes = tuple[list[onnx.NodeProto], list[onnx.TensorProto]]


def tables(random: np.random.Generator, rows: int, bits: int) -> npt.NDArray[np.float32]:
    """Tables as the pass `lut` makes them: 8-bit integers times a factor of the row."""
    entries = np.sort(random.integers(-127, 128, (rows, 2**bits)), axis=1)
    entries[:, -1] = 127
    return (entries * random.uniform(0.5, 1.5, (rows, 1)) / 2000).astype(np.float32)


def lut_layer(random: np.random.Generator, name: str, depth: int, rows: int, bits: int, activation_bits: int) -> Nodes:
    """One LutMatMul from x to y<name>."""
    words = random.integers(-(2**31), 2**31, (rows, depth * bits // 32), dtype=np.int32)
    weights = [
        numpy_helper.from_array(words, f"packed{name}"),
        numpy_helper.from_array(tables(random, rows, bits), f"lut{name}"),
    ]
    inputs = ["x", f"packed{name}", f"lut{name}"]
    attributes = {"bits": bits, "K": depth, "activation_bits": activation_bits}
    return [helper.make_node("LutMatMul", inputs, [f"y{name}"], domain=DOMAIN, **attributes)], weights


def sparse_layer(random: np.random.Generator, name: str, depth: int, rows: int, activation_bits: int) -> Nodes:
    """LutMatMul at 4 bits, with 0.45 % of the values in its sparse matrix."""
    nodes, weights = lut_layer(random, name, depth, rows, 4, activation_bits)
    counts = random.binomial(depth, SPARSE, rows)
    columns = np.concatenate([np.sort(random.choice(depth, count, replace=False)) for count in counts])
    offsets = np.concatenate([[0], np.cumsum(counts)])
    arrays = {
        f"values{name}": random.normal(size=len(columns)).astype(np.float32),
        f"columns{name}": columns.astype(np.int32),
        f"offsets{name}": offsets.astype(np.int32),
    }
    weights += [numpy_helper.from_array(array, key) for key, array in arrays.items()]
    nodes[0].input.extend(arrays)
    return nodes, weights


def group_layer(
    random: np.random.Generator, name: str, depth: int, rows: int, bits: int, activation_bits: int
) -> Nodes:
    """One GroupMatMul with groups of 128 and zero points."""
    words = random.integers(-(2**31), 2**31, (rows, depth * bits // 32), dtype=np.int32)
    shape = (rows, depth // 128)
    arrays = {
        f"packed{name}": words,
        f"scales{name}": random.uniform(0.5, 1.5, shape).astype(np.float32) / 2000,
        f"zero_points{name}": random.integers(0, 2**bits, shape).astype(np.uint8),
    }
    weights = [numpy_helper.from_array(array, key) for key, array in arrays.items()]
    attributes = {"bits": bits, "K": depth, "group_size": 128, "activation_bits": activation_bits}
    return [helper.make_node("GroupMatMul", ["x", *arrays], [f"y{name}"], domain=DOMAIN, **attributes)], weights


def level_layer(
    random: np.random.Generator, name: str, depth: int, rows: int, kind: str, size: int, activation_bits: int
) -> Nodes:
    """One GroupMatMul with groups of `size` whose codes stand for the numbers of `kind`."""
    levels = LEVELS[kind]
    bits = len(levels).bit_length() - 1
    numbers = random.integers(0, len(levels), (rows, depth), np.uint8)
    packed = pack(np.where(np.isnan(levels)[numbers], np.uint8(0), numbers), bits)
    scales = random.uniform(0.5, 1.5, (rows, depth // size)).astype(np.float32) / 2000
    arrays = {f"packed{name}": packed, f"scales{name}": scales, f"levels{name}": levels}
    weights = [numpy_helper.from_array(array, key) for key, array in arrays.items()]
    attributes = {"bits": bits, "K": depth, "group_size": size, "activation_bits": activation_bits}
    packed_name, scales_name, levels_name = arrays
    inputs = ["x", packed_name, scales_name, "", levels_name]
    return [helper.make_node("GroupMatMul", inputs, [f"y{name}"], domain=DOMAIN, **attributes)], weights


def float_layer(random: np.random.Generator, name: str, depth: int, rows: int) -> Nodes:
    """A MatMul in float32."""
    weight = random.standard_normal((depth, rows), np.float32)
    weights = [numpy_helper.from_array(weight, f"weight{name}")]
    return [helper.make_node("MatMul", ["x", f"weight{name}"], [f"y{name}"])], weights


def nbits_layer(random: np.random.Generator, name: str, depth: int, rows: int, block: int) -> Nodes:
    """ONNX Runtime's own 4-bit product, with activations in INT8."""
    arrays = {
        f"b{name}": random.integers(0, 256, (rows, depth // block, block // 2), dtype=np.uint8),
        f"scales{name}": random.uniform(0.5, 1.5, rows * (depth // block)).astype(np.float32) / 2000,
    }
    weights = [numpy_helper.from_array(array, key) for key, array in arrays.items()]
    attributes = {"K": depth, "N": rows, "bits": 4, "block_size": block, "accuracy_level": 4}
    node = helper.make_node("MatMulNBits", ["x", *arrays], [f"y{name}"], domain="com.microsoft", **attributes)
    return [node], weights


def session(make: Callable[..., Nodes], depth: int, rows: int, count: int, threads: int, *options: int) -> Any:
    """A session of `count` layers of their own weights."""
    random = np.random.default_rng(0)
    nodes: list[onnx.NodeProto] = []
    weights: list[onnx.TensorProto] = []
    for index in range(count):
        made = make(random, str(index), depth, rows, *options)
        nodes += made[0]
        weights += made[1]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, depth])
    outputs = [helper.make_tensor_value_info(f"y{index}", TensorProto.FLOAT, [1, rows]) for index in range(count)]
    imports = [helper.make_opsetid("", 23), helper.make_opsetid(DOMAIN, 1), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(
        helper.make_graph(nodes, "g", [x], outputs, weights), opset_imports=imports, ir_version=10
    )
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = threads
    settings.add_session_config_entry("session.intra_op.allow_spinning", "0")
    ort.register(settings)
    return onnxruntime.InferenceSession(model.SerializeToString(), settings, providers=["CPUExecutionProvider"])


def seconds(run: Any, x: npt.NDArray[np.float32], count: int) -> float:
    """The least time of one layer in three runs, after one that wakes the threads."""
    run.run(None, {"x": x})
    times = []
    for _ in range(3):
        begin = time.perf_counter()
        run.run(None, {"x": x})
        times.append(time.perf_counter() - begin)
    return min(times) / count


def measure(depth: int, rows: int, threads: int, rounds: int, activation_bits: int, levels: bool) -> None:
    """Print the table of one shape."""
    layers = {bits: -(-BYTES // (depth * rows * bits // 8)) for bits in (2, 3, 4, 8, 32)}
    contestants: dict[str, tuple[Callable[..., Nodes], int, tuple[Any, ...]]] = (
        {
            "group 4-bit": (group_layer, 4, (4, activation_bits)),
            "NF4, groups of 64": (level_layer, 4, ("NF4", 64, activation_bits)),
            "MXFP4, groups of 32": (level_layer, 4, ("MXFP4", 32, activation_bits)),
            "group 8-bit": (group_layer, 8, (8, activation_bits)),
            "FP8, groups of 128": (level_layer, 8, ("FP8", 128, activation_bits)),
            "MatMul float32": (float_layer, 32, ()),
        }
        if levels
        else {
            **{f"lut {bits}-bit": (lut_layer, bits, (bits, activation_bits)) for bits in (4, 3, 2)},
            "lut 4-bit + 0.45 % sparse": (sparse_layer, 4, (activation_bits,)),
            "group 4-bit": (group_layer, 4, (4, activation_bits)),
            "MatMulNBits, blocks of 128": (nbits_layer, 4, (128,)),
            "MatMulNBits, blocks of 32": (nbits_layer, 4, (32,)),
        }
    )
    sessions = {
        name: session(make, depth, rows, layers[bits], threads, *options)
        for name, (make, bits, options) in contestants.items()
    }
    x = np.random.default_rng(1).normal(size=(1, depth)).astype(np.float32)
    memory = Memory()
    times: dict[str, list[float]] = {name: [] for name in contestants}
    bandwidth: list[float] = []
    for _ in range(rounds):
        bandwidth.append(max(memory.read(threads) for _ in range(3)))
        for name, (_, bits, _) in contestants.items():
            times[name].append(seconds(sessions[name], x, layers[bits]))
    print(f"\n{depth}×{rows}, {threads} thread(s), {activation_bits}-bit activations; "
          f"read bandwidth {np.median(bandwidth) / 1e9:.1f} GB/s")  # fmt: skip
    first = next(iter(contestants))
    print(f"{'':28}{'µs':>8}{'GB/s':>8}{'bandwidth':>11}{'÷ ' + first:>17}")
    base = np.array(times[first])
    for name, (_, bits, _) in contestants.items():
        each = np.array(times[name])
        rate = depth * rows * bits / 8 / each
        print(f"{name:28}{np.median(each) * 1e6:8.0f}{np.median(rate) / 1e9:8.1f}"
              f"{np.median(rate / np.array(bandwidth)):11.2f}{np.median(each / base):17.2f}")  # fmt: skip


def main() -> None:
    """Measure every shape."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--activation-bits", type=int, nargs="+", default=[16, 32], choices=(16, 32))
    parser.add_argument("--levels", action="store_true", help="codes of levels")
    options = parser.parse_args()
    print(f"{ort.instruction_set()}; onnxruntime {onnxruntime.__version__}")
    for activation_bits in options.activation_bits:
        for threads in options.threads:
            for depth, rows in SHAPES:
                measure(depth, rows, threads, options.rounds, activation_bits, options.levels)


if __name__ == "__main__":
    main()
