"""Run our operators on the GPU in ONNX Runtime: nodes with the CUDA kernels for the GPU of this machine."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from intaglio.bundle.external_data import external_data_files, link_data
from intaglio.bundle.model_file import load, outline, save
from intaglio.errors import BundleError, EngineError, MissingExtraError
from intaglio.plugins import OPS, custom_operators
from intaglio.plugins import ort as kernels
from intaglio.plugins.cuda.compiler import built_for, compile_kernels
from intaglio.plugins.cuda.driver import check_driver
from intaglio.processes.temporary import scratch_directory
from intaglio.runtime.engines import gpus

SHOWN = 3  # nodes in a warning


class OnTheCpu(UserWarning):
    """Operators without a CUDA kernel run on the CPU: their inputs and outputs are copied in every run."""


@contextmanager
def with_cuda_kernels(path: Path) -> Iterator[Path]:
    """Yield an ONNX file whose nodes of our operators have CUDA kernels for this machine's GPU: a temporary copy.

    It is `path` itself if it needs none, or without a GPU or our library. Nodes without a kernel stay, and the warning
    `OnTheCpu` names them. Raises `EngineError` for a damaged file, and for a driver that is too old.
    """
    try:
        message = outline(path)
        names = custom_operators(message.graph.node)
        locations = external_data_files(message)
    except BundleError as error:
        raise EngineError(str(error)) from error
    gpu = gpus.present() if names and kernels.operators() else None
    if gpu is None:
        yield path
        return
    from intaglio.plugins.ort.cuda_nodes import use_cuda_kernels  # loads what changes graphs, which takes long

    try:
        sm = built_for(gpu.sm)
        check_driver(sm)
        with suppress(EngineError):  # raised again for each node whose kernel does not compile
            compile_kernels([OPS[name].folder for name in names], sm)
        model = load(path)
        left = use_cuda_kernels(model, gpu.sm)
    except MissingExtraError as error:  # NVRTC
        warnings.warn(f"{', '.join(names)} run on the CPU: {error}", OnTheCpu, stacklevel=4)
        yield path
        return
    if left:
        warnings.warn(_message(left), OnTheCpu, stacklevel=4)
    with scratch_directory("cuda") as directory:
        link_data(path, locations, directory)
        save(model, directory / path.name, beside=locations)
        yield directory / path.name


def _message(left: Mapping[str, str]) -> str:
    """Name the nodes that stay on the CPU, and why."""
    reasons = [f"node {name} runs on the CPU (its tensors are copied): {reason}" for name, reason in left.items()]
    more = [f"{len(reasons) - SHOWN} more nodes do too."] if len(reasons) > SHOWN else []
    return " ".join([*reasons[:SHOWN], *more])
