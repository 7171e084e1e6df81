"""The tensors of which a quantised weight consists."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from intaglio.errors import SourceError
from intaglio.exporters.files.safetensors_file import MappedTensor
from intaglio.plugins.bit_packing import WORD, pack, unpack

Parts = Mapping[str, MappedTensor]  # by the last part of their names
Arrays = dict[str, npt.NDArray[Any]]  # the same to be written


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
    """[rows, words] to [rows, numbers], a little-endian stream of bits.

    There may be more numbers than the words were made from: those that fill up the last word, or with 3 bits, three.
    """
    if WORD % bits:
        return unpack(np.ascontiguousarray(np.pad(words, ((0, 0), (0, -words.shape[1] % bits)))), bits)
    shifts = np.arange(0, WORD, bits, dtype=np.uint32)
    numbers = words.view(np.uint32)[:, :, None] >> shifts & np.uint32(2**bits - 1)
    return numbers.astype(np.uint8).reshape(len(words), -1)


def packed(numbers: npt.NDArray[np.uint8], bits: int) -> npt.NDArray[np.int32]:
    """[rows, numbers] to the [rows, words] that `unpacked` reads; the last word of a row is filled up with zeros."""
    length = numbers.shape[1]
    filled = np.pad(numbers, ((0, 0), (0, -length % WORD)))
    return np.ascontiguousarray(pack(filled, bits)[:, : -(-length * bits // WORD)])


def half(name: str, scales: npt.NDArray[np.float32], form: str) -> npt.NDArray[np.float16]:
    """`scales` in float16, in which the format `form` has them. Raises `SourceError` where that rounds one."""
    with np.errstate(over="ignore"):
        rounded = scales.astype(np.float16)
    if different := int((rounded.astype(np.float32) != scales).sum()):
        raise SourceError(
            f"{name}: {different} of {scales.size} scales change in float16, the only dtype of scales in {form}. "
            "Compress with scale_dtype: float16 in the recipe file, or write --format compressed-tensors."
        )
    return rounded
