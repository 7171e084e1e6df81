"""Let ONNX Runtime run our operators: by the compiled library, or by the operators' function bodies."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from intaglio.bundle.external_data import external_data_files, link_data, symbolic_data
from intaglio.bundle.model_file import load, outline, parse, save
from intaglio.errors import BundleError, EngineError
from intaglio.files.hashes import copy_file
from intaglio.plugins import OPS, custom_operators
from intaglio.plugins import ort as kernels
from intaglio.processes.temporary import scratch_directory
from intaglio.runtime.engines.onnxruntime.cuda_kernels import with_cuda_kernels

COMPILE = "Install g++ or clang++, then: pip install --force-reinstall --no-deps intaglio"


class MissingKernels(UserWarning):
    """Operators run as their function bodies in standard ONNX, which is correct but slow."""


@contextmanager
def runnable(path: Path, options: Any, operators: Iterable[str] | None = None, on_gpu: bool = False) -> Iterator[Path]:
    """Yield an ONNX file that a session with `options` can open: `path`, if the library has all of its operators.

    `operators`: Intaglio's operators in the file, if known, as from a bundle's manifest; else the file is read.
    `on_gpu`: for a session on this machine's GPU; the file is then a temporary copy with CUDA kernels, see
    `with_cuda_kernels`.

    Otherwise it is a temporary copy, in which the missing operators are replaced by their bodies, and the warning
    `MissingKernels` is issued. Raises `EngineError` for a damaged file, and for operators that this version does not
    know.
    """
    try:
        needed = set(custom_operators(parse(path).graph.node) if operators is None else operators)
    except BundleError as error:
        raise EngineError(str(error)) from error
    if unknown := sorted(needed - set(OPS)):
        raise EngineError(
            f"{path}: needs the custom operators {', '.join(unknown)}, which this version of intaglio does not have. "
            "Update with: pip install --upgrade intaglio"
        )
    available = set(kernels.operators()) if needed and kernels.register(options) else set()
    missing = needed - available
    if not missing:
        with ExitStack() as held:
            file = held.enter_context(_without_links(path))
            yield held.enter_context(with_cuda_kernels(file)) if needed and on_gpu else file
        return
    from intaglio.plugins.inlining import inline  # loads what changes graphs, which takes long and is rarely needed

    warnings.warn(_message(missing, bool(available)), MissingKernels, stacklevel=4)
    with scratch_directory("inlined") as directory:
        model = load(path)
        inline(model, missing)
        save(model, directory / path.name)
        yield directory / path.name


@contextmanager
def _without_links(path: Path) -> Iterator[Path]:
    """Yield the file that `path` leads to, or a temporary copy of a model with external data behind symbolic links.

    ONNX Runtime (1.31) does not follow links that lead out of the model's folder.
    """
    try:
        locations = external_data_files(outline(path))
    except BundleError as error:
        raise EngineError(str(error)) from error
    if not locations:
        yield path.resolve()
        return
    if not path.is_symlink() and not symbolic_data(path, locations):
        yield path
        return
    with scratch_directory("linked") as directory:
        copy_file(path, directory / path.name)
        link_data(path, locations, directory)
        yield directory / path.name


def _message(missing: set[str], library: bool) -> str:
    names = ", ".join(sorted(missing))
    if library:
        return f"no compiled kernels for {names}: they run as standard ONNX operators, which is several times slower."
    return (
        f"intaglio was installed without a C++ compiler: {names} run as standard ONNX operators, which is several "
        f"times slower. {COMPILE}"
    )
