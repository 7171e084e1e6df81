"""Run a torch model whose large weights stay in the checkpoint's files: each is read when its module runs.

A model in memory takes 4 bytes for each of its parameters, twice the size of the usual checkpoint.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from intaglio.exporters.checkpoints.quantized.formats import StoredTensor
from intaglio.exporters.files.safetensors_file import MappedTensor

READ_ABOVE = 1 << 20  # bytes in float32; smaller weights are in memory as usual
CHUNK = 1 << 20  # elements read and converted at a time
KEPT = 2 << 30  # bytes of weights that are computed, such as from codes, which takes longer than to multiply by them


class StreamedWeights:
    """A checkpoint's tensors, for a model to be built from `state_dict` and then prepared by `attach`.

    In `state_dict` a large weight is a stand-in: one number, expanded to the shape. No two of them are equal, so that
    none is taken for another's copy.
    """

    def __init__(self, tensors: Mapping[str, StoredTensor]):
        large = {name: each for name, each in tensors.items() if _is_large(each)}
        self._sources = list(large.values())
        self._numbers = torch.arange(1, len(large) + 1, dtype=torch.float32)
        stand_ins = {name: self._numbers[index].expand(each.shape) for index, (name, each) in enumerate(large.items())}
        self.state_dict = stand_ins | {name: each.tensor for name, each in tensors.items() if name not in large}
        self._free: list[Tensor] = []  # float32 buffers, flat
        self._kept: dict[int, Tensor] = {}  # by the number of the stand-in
        self._room = KEPT  # bytes left for them

    def attach(self, model: nn.Module) -> bool:
        """Let the modules of `model` read their weights when they run; return whether the model can run so.

        Weights of a Linear, an Embedding or a Conv1D are read for each call; those of other modules are read now:
        their code may return parts of them. False if a large parameter is no stand-in, as the library combined several.
        """
        for module in model.modules():
            for name, parameter in [*module._parameters.items(), *module._buffers.items()]:
                if parameter is None or not _is_large(parameter):
                    continue
                index = self._index(parameter)
                if index is None:
                    return False
                if name == "weight" and _only_multiplies(module):
                    self._stream(module, index)
                else:
                    parameter.data = self._sources[index].tensor.to(torch.float32)
        return True

    def _index(self, parameter: Tensor) -> int | None:
        """The number of the stand-in that `parameter` is."""
        offset, rest = divmod(parameter.data_ptr() - self._numbers.data_ptr(), self._numbers.element_size())
        return offset if rest == 0 and 0 <= offset < len(self._sources) else None

    def _stream(self, module: nn.Module, index: int) -> None:
        stand_in = module._parameters["weight"]

        def begin(module: nn.Module, inputs: Any) -> None:
            module._parameters["weight"] = self._weight(index)  # type: ignore[assignment]

        def end(module: nn.Module, inputs: Any, output: Any) -> None:
            used = module._parameters["weight"]
            if used is not None and used is not stand_in and index not in self._kept:
                self._free.append(used.view(-1))
            module._parameters["weight"] = stand_in

        module.register_forward_pre_hook(begin)
        module.register_forward_hook(end)

    def _weight(self, index: int) -> Tensor:
        """The weight of a stand-in, which is kept if it was computed and there is room."""
        if index in self._kept:
            return self._kept[index]
        source = self._sources[index]
        if not isinstance(source, MappedTensor) and (size := 4 * math.prod(source.shape)) <= self._room:
            self._room -= size
            self._kept[index] = source.tensor.to(torch.float32)
            return self._kept[index]
        buffer = self._buffer(math.prod(source.shape))
        _read(source, buffer)
        return buffer.view(source.shape)

    def _buffer(self, elements: int) -> Tensor:
        """A buffer of this number of elements: the beginning of a free one, whose storage is at least as large."""
        for position, buffer in enumerate(self._free):
            if buffer.untyped_storage().nbytes() >= 4 * elements:
                whole = self._free.pop(position)
                return torch.empty(0).set_(whole.untyped_storage(), 0, (elements,), (1,))
        self._free.clear()  # too small: one that fits all takes their place
        return torch.empty(elements, dtype=torch.float32)


def _is_large(tensor: StoredTensor | Tensor) -> bool:
    return tensor.dtype.is_floating_point and 4 * math.prod(tensor.shape) > READ_ABOVE


def _only_multiplies(module: nn.Module) -> bool:
    """Whether the module's output never shares memory with its weight."""
    return isinstance(module, nn.Linear | nn.Embedding) or type(module).__name__ == "Conv1D"


def _read(source: StoredTensor, target: Tensor) -> None:
    """Read a tensor from its file into the flat float32 `target`, without mapping it."""
    if not isinstance(source, MappedTensor):
        target.copy_(source.tensor.view(-1))
        return
    elements, size = source.tensor.numel(), source.tensor.element_size()
    part = torch.empty(min(CHUNK, elements), dtype=source.tensor.dtype)
    raw = part.view(torch.uint8).numpy().data
    with source.path.open("rb", buffering=0) as file:
        file.seek(source.offset)
        for start in range(0, elements, CHUNK):
            count = min(CHUNK, elements - start)
            if file.readinto(raw[: count * size]) != count * size:
                raise OSError(f"{source.path}: ended while it was read")
            target[start : start + count].copy_(part[:count])
