"""Caches of 8 or 4 bits on a GPU: the graph changes before its nodes get their CUDA kernels."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from intaglio.bundle.external_data import external_data_files, link_data
from intaglio.processes.temporary import scratch_directory
from intaglio.runtime.engines.caches.quantized_cache import quantize_caches
from intaglio.runtime.engines.onnxruntime.partial_graph import partial_graph


@contextmanager
def file_with_slots(path: Path, bits: int) -> Iterator[Path]:
    """Yield a temporary copy of the ONNX file `path` whose caches hold slots of `bits`, four bytes in a float.

    So the node that writes them is the one for floats, which ONNX Runtime has for GPUs. Raises as `quantize_caches`.
    """
    model = partial_graph(path, None)
    quantize_caches(model, bits, words=True)
    with scratch_directory("slots") as directory:
        # Large weights inside the file are external data of the copy, which therefore has another name.
        link_data(path, external_data_files(model), directory)
        copy = directory / f"slots-{path.name}"
        copy.write_bytes(model.SerializeToString())
        yield copy
