"""Let torch trace equal modules once: most tests that export differ in weights or settings that traces ignore.

A trace takes torch seconds, mostly independent of the size of the graph. Modules are equal if everything that tracing
reads is: their structure, the attributes of all submodules, the shapes and types of parameters, the values of
buffers, and the names and axes of inputs and outputs. Our code processes a copy of the trace each time.
Workers share traces as files.
"""

from __future__ import annotations

import gc
import hashlib
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import onnx_ir as ir

# Of a configuration; none changes the graph beyond the shapes and dtypes of its parameters. Encoders give `use_cache`.
# What depends on the longest text has attributes or parameters of its own.
NAMES = ("_name_or_path", "architectures", "bos_token_id", "dtype", "eos_token_id", "id2label", "initializer_range",
         "label2id", "max_position_embeddings", "n_positions", "problem_type", "transformers_version",
         "use_cache")  # fmt: skip
UNUSED = ("max_seq_len_cached", "original_max_seq_len")  # attributes of rotary embeddings, of their frequencies alone
PLAIN = (bool, int, float, str, bytes, type(None), tuple, list, set, frozenset)


def identity(module: Any, arguments: Any, options: dict[str, Any]) -> str:
    """Everything that a trace of `module` with these arguments depends on, as one text."""
    import torch
    import transformers

    examples = [(tuple(each.shape), str(each.dtype)) for each in arguments[0]]
    parts = [repr(module), repr(examples)]
    parts += [f"{name}={value!r}" for name, value in sorted(options.items())]
    for name, part in module.named_modules():
        parts.append(f"{name}: {type(part).__module__}.{type(part).__qualname__} {part.training}")
        for key, value in sorted(vars(part).items()):
            if key in UNUSED:
                continue
            if isinstance(value, (*PLAIN, torch.dtype)):
                # The order of a set differs between processes.
                parts.append(f"{key}={sorted(value, key=repr) if isinstance(value, (set, frozenset)) else value!r}")
            elif isinstance(value, transformers.PreTrainedConfig):
                parts.append(repr({name: each for name, each in value.to_dict().items() if name not in NAMES}))
    first: dict[int, str] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        owner = first.setdefault(id(parameter), name)  # tied parameters are one in the graph
        parts.append(f"{name}={owner} {tuple(parameter.shape)} {parameter.dtype}")
    for name, buffer in module.named_buffers():
        digest = hashlib.sha256(buffer.detach().contiguous().numpy().tobytes()).hexdigest()
        parts.append(f"{name} {tuple(buffer.shape)} {buffer.dtype} {digest}")
    return "\n".join(parts)


Once = Callable[[str, Callable[[Path], object]], Path]  # `once` of conftest.py


def trace_once(once: Once) -> None:
    """Replace `torch.onnx.export`."""
    import torch

    torch.onnx.export = TracedOnce(torch.onnx.export, once)


class TracedOnce:
    """Stands in for `torch.onnx.export`: calls it for the first of equal modules, and returns copies of its graph."""

    def __init__(self, export: Any, once: Once):
        self._export = export
        self._once = once

    def __call__(self, module: Any, *arguments: Any, **options: Any) -> Any:
        """Like `torch.onnx.export`."""
        if len(arguments) > 1:  # a file to write
            return self._export(module, *arguments, **options)
        import onnx_ir as ir
        from torch._dynamo import config

        name = hashlib.sha256(identity(module, arguments, options).encode()).hexdigest()
        parameters = {name for name, _ in module.named_parameters(remove_duplicate=False)}

        def trace(path: Path) -> None:
            # Its cache of shapes costs more than it saves with two layers.
            with uncollected(), config.patch(fake_tensor_cache_enabled=False):
                model = self._export(module, *arguments, **options).model
            save(model, parameters, path)

        return SimpleNamespace(model=ir.load(self._once(f"traces/{name}", trace)))


@contextmanager
def uncollected() -> Iterator[None]:
    """No garbage is collected, and pytest keeps no records of torch: a trace makes so many objects and records."""
    disabled = logging.root.manager.disable
    gc.disable()
    logging.disable(logging.INFO)
    try:
        yield
    finally:
        logging.disable(disabled)
        gc.enable()


def save(model: ir.Model, parameters: set[str], path: Path) -> None:
    """Write a trace whose parameters, which are fake, become references to a file that does not exist."""
    import onnx_ir as ir

    for name in parameters & model.graph.initializers.keys():
        tensor = model.graph.initializers[name].const_value
        assert tensor is not None
        model.graph.initializers[name].const_value = ir.ExternalTensor(
            "none", 0, tensor.nbytes, tensor.dtype, shape=tensor.shape, name=name
        )
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_bytes(ir.to_proto(model).SerializeToString())
    unfinished.rename(path)
