"""The tensors of an encoder's models: what clients send and get, a graph's own, and those of a warm-up request."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from intaglio.bundle.bundle import Bundle
from intaglio.bundle.manifest import TensorSpec
from intaglio.deploy.triton.config import DATA_TYPES, Message, Word, string_bytes, tensor
from intaglio.deploy.triton.model import WARM_UP, warm_up
from intaglio.deploy.triton.serving.settings import LABELS, TEXT
from intaglio.errors import UsageError
from intaglio.runtime.text.tasks import TASKS


def outputs(bundle: Bundle, dtype: str) -> list[Message]:
    """What clients get for each text."""
    manifest = bundle.manifest
    if manifest.task == "classify":
        classes = tensor("scores", "float32", [len(manifest.labels)], label_filename=LABELS)
        return [tensor("label", "str", [1]), classes]
    shape = next(spec.shape for spec in manifest.outputs if spec.name == TASKS[manifest.task].output)
    return [tensor("embedding", dtype, _dims(shape[-1:]))]


def graph_tensor(spec: TensorSpec) -> Message:
    """An input or output of a graph. Raises `UsageError` for a dtype that Triton does not have."""
    if spec.dtype not in DATA_TYPES:
        raise UsageError(f"{spec.name}: Triton has no tensors of {spec.dtype}. Use --backend python.")
    return tensor(spec.name, spec.dtype, _dims(spec.shape[1:]))


def labels_file(bundle: Bundle) -> dict[str, bytes | Path]:
    """The file with the names of the classes, if there are any."""
    labels = bundle.manifest.labels
    return {LABELS: "".join(f"{label}\n" for label in labels).encode()} if labels else {}


def text_warm_up() -> tuple[Message, dict[str, bytes | Path]]:
    """A warm-up request with a text, and its file."""
    return warm_up("sentence", {TEXT: (described("str", [1]), string_bytes(WARM_UP))})


def described(dtype: str, shape: Sequence[int]) -> dict[str, Any]:
    """The fields that describe a tensor of a warm-up request: NumPy's dtype, and its axes without the batch."""
    return {"data_type": Word(DATA_TYPES[dtype]), "dims": [int(length) for length in shape]}


def _dims(shape: Sequence[int | str]) -> list[int]:
    return [-1 if isinstance(length, str) else length for length in shape]
