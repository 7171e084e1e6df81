"""The verb `inspect`: the content of a bundle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from intaglio.bundle.bundle import (
    Bundle,
    Encoder,
    EngineRecord,
    FileRecord,
    ImageEncoder,
    PassRecord,
    TensorSpec,
    TextTower,
)
from intaglio.bundle.model_file import constants, count_weights, load

if TYPE_CHECKING:
    import onnx_ir as ir


class Inspected(msgspec.Struct):
    """A bundle's content. Operators and bytes are counted in all its graphs, including an encoder's."""

    bundle: str
    source: str
    architecture: str
    task: str
    inputs: list[TensorSpec]
    outputs: list[TensorSpec]
    encoder: Encoder | None  # the other graph of an encoder-decoder
    text: TextTower | None  # the graph for texts of a model that compares images with them
    image_encoder: ImageEncoder | None  # the graph for images of a decoder that reads them in its prompts
    operators: dict[str, int]  # type -> number of nodes, most frequent first
    operators_by_dtype: dict[str, dict[str, int]]  # type -> dtype of the first output -> number
    parameters: int  # weights of the exported model, before any pass
    parameter_bytes: dict[str, int]  # dtype -> bytes of all constants of the graph: tables, scales, indices, ...
    bits_per_weight: float  # bits of all these constants / parameters
    bytes: int  # of every file of the bundle
    passes: list[PassRecord]
    engines: list[EngineRecord]
    files: dict[str, FileRecord]


def inspect(bundle: str | Path) -> Inspected:
    """Read and verify the bundle at `bundle`, and summarise its content. Raises `BundleError`."""
    opened = Bundle.open(bundle)
    manifest = opened.manifest
    models = [load(path) for path in opened.graph_paths]
    operators: Counter[str] = Counter()
    by_dtype: dict[str, Counter[str]] = {}
    for node in (node for model in models for node in model.graph.all_nodes()):
        name = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
        dtype = node.outputs[0].dtype if node.outputs else None
        operators[name] += 1
        by_dtype.setdefault(name, Counter())[dtype.numpy().name if dtype else "unknown"] += 1
    sizes: Counter[str] = Counter()
    for tensor in _stored(models):
        if tensor.size > 0:
            sizes[tensor.dtype.numpy().name] += tensor.nbytes
    parameters = manifest.parameters or sum(count_weights(model) for model in models)
    return Inspected(
        bundle=str(bundle),
        source=manifest.source.location,
        architecture=manifest.architecture,
        task=manifest.task,
        inputs=manifest.inputs,
        outputs=manifest.outputs,
        encoder=manifest.encoder,
        text=manifest.text,
        image_encoder=manifest.image_encoder,
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


def _stored(models: list[ir.Model]) -> Iterator[ir.TensorProtocol]:
    """The constants of the models; constants in a shared file only once."""
    import onnx_ir as ir

    seen = set()
    for tensor in (tensor for model in models for tensor in constants(model)):
        if isinstance(tensor, ir.ExternalTensor):
            place = (str(tensor.location), tensor.offset)
            if place in seen:
                continue
            seen.add(place)
        yield tensor
