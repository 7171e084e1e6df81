"""The verb `inspect`: what a bundle holds."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec

from intaglio.bundle import Bundle, EngineRecord, FileRecord, PassRecord, TensorSpec
from intaglio.model_file import constants, count_weights, load


class Inspected(msgspec.Struct):
    """A bundle's content."""

    bundle: str
    source: str
    architecture: str
    task: str
    inputs: list[TensorSpec]
    outputs: list[TensorSpec]
    operators: dict[str, int]  # type -> number of nodes, most frequent first
    operators_by_dtype: dict[str, dict[str, int]]  # type -> dtype of the first output -> number
    parameters: int  # weights of the model that was exported, whatever passes made of them since
    parameter_bytes: dict[str, int]  # dtype -> bytes of everything that the graph stores: tables, scales, indices, ...
    bits_per_weight: float  # all of these bytes, over the parameters
    bytes: int  # of every file of the bundle
    passes: list[PassRecord]
    engines: list[EngineRecord]
    files: dict[str, FileRecord]


def inspect(bundle: str | Path) -> Inspected:
    """Read the bundle at `bundle`, whose hashes are verified, and count what it holds. Raises `BundleError`."""
    opened = Bundle.open(bundle)
    manifest = opened.manifest
    model = load(opened.model_path)
    operators: Counter[str] = Counter()
    by_dtype: dict[str, Counter[str]] = {}
    for node in model.graph.all_nodes():
        name = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
        dtype = node.outputs[0].dtype if node.outputs else None
        operators[name] += 1
        by_dtype.setdefault(name, Counter())[dtype.numpy().name if dtype else "unknown"] += 1
    sizes: Counter[str] = Counter()
    for tensor in constants(model):
        if tensor.size > 0:
            sizes[tensor.dtype.numpy().name] += tensor.nbytes
    parameters = manifest.parameters or count_weights(model)
    return Inspected(
        bundle=str(bundle),
        source=manifest.source.location,
        architecture=manifest.architecture,
        task=manifest.task,
        inputs=manifest.inputs,
        outputs=manifest.outputs,
        operators=dict(operators.most_common()),
        operators_by_dtype={name: dict(by_dtype[name].most_common()) for name, _ in operators.most_common()},
        parameters=parameters,
        parameter_bytes=dict(sizes.most_common()),
        bits_per_weight=8 * sizes.total() / parameters if parameters else 0.0,
        bytes=sum(record.bytes for record in manifest.files.values()),
        passes=manifest.passes,
        engines=manifest.engines,
        files=manifest.files,
    )
