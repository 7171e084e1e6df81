"""The tensors of which a quantised weight consists."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from intaglio.exporters.files.safetensors_file import MappedTensor
from intaglio.plugins.bit_packing import WORD, unpack

Parts = Mapping[str, MappedTensor]  # by the last part of their names


def array(part: MappedTensor) -> npt.NDArray[Any]:
    """The numbers of a tensor, bfloat16 as float32."""
    import torch

    tensor = part.tensor
    numbers: npt.NDArray[Any] = (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
    return np.ascontiguousarray(numbers)


def described(parts: Parts) -> str:
    """The parts with their shapes, for an error."""
    return ", ".join(f"{name} {list(part.shape)}" for name, part in parts.items())


def layer_groups(settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What compressed-tensors states for each group of layers."""
    groups = settings.get("config_groups")
    return [each for each in groups.values() if isinstance(each, dict)] if isinstance(groups, dict) else []


def unpacked(words: npt.NDArray[np.int32], bits: int) -> npt.NDArray[np.uint8]:
    """[rows, words] to [rows, words·32/bits] numbers, a little-endian stream of bits; 3 bits fill three words."""
    if WORD % bits:
        return unpack(words, bits)
    shifts = np.arange(0, WORD, bits, dtype=np.uint32)
    numbers = words.view(np.uint32)[:, :, None] >> shifts & np.uint32(2**bits - 1)
    return numbers.astype(np.uint8).reshape(len(words), -1)
