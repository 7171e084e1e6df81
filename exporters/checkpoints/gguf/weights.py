"""The weights of a GGUF file under the names of transformers, each as its blocks allow to keep it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from intaglio.errors import SourceError
from intaglio.exporters.checkpoints.gguf.architectures import OUTSIDE, STACKED, Architecture
from intaglio.exporters.checkpoints.gguf.blocks import TYPES, Codes
from intaglio.exporters.checkpoints.gguf.configuration import FREQUENCIES, LONG, SHORT
from intaglio.exporters.checkpoints.gguf.container import Container, StoredBlocks
from intaglio.exporters.checkpoints.quantized.grouped_weight import GroupedWeight, Groups, StackedWeight, alternating
from intaglio.exporters.files.computed_tensor import ComputedTensor, FloatTensor
from intaglio.exporters.files.safetensors_file import MappedTensor, map_tensor
from intaglio.plugins.bit_packing import pack
from intaglio.plugins.group_matmul.signature import smallest_group

if TYPE_CHECKING:
    import torch

Stored = FloatTensor | GroupedWeight | StackedWeight
HEAD = "lm_head.weight"
BLOCK = re.compile(r"blk\.(\d+)\.(.+)\.(weight|bias)")
PERMUTED, SINKS = ("attn_q", "attn_k"), "attn_sinks"
SETTINGS = (FREQUENCIES, LONG, SHORT)  # tensors of the configuration
AT_ONCE = 1 << 24  # elements that are decoded at a time


def parameters(path: Path, file: Container, known: Architecture, config: Mapping[str, Any]) -> dict[str, Stored]:
    """The tensors by the names of transformers. Raises `SourceError` for one that the architecture does not have."""
    found: dict[str, Stored] = {}
    for name, blocks in file.tensors.items():
        if name in SETTINGS:
            continue
        target, kind = _target(path, name, known)
        offset = known.norm_offset if target.endswith("norm.weight") else 0.0
        order = None
        if known.interleaved and name.split(".")[-2] in PERMUTED:
            heads = config["num_attention_heads" if kind == "attn_q" else "num_key_value_heads"]
            order = rows_in_file(path, name, blocks.shape[0], heads)
        if "{}" in target:
            for index in range(blocks.shape[0]):
                found[target.format(index)] = _stored(_part(blocks, index), order, offset)
        elif known.stacked and kind in STACKED and target.endswith("weight"):
            parts = (_part(blocks, index) for index in range(blocks.shape[0]))
            found[target] = StackedWeight(tuple(_stored(part, None, 0.0) for part in parts))
        elif kind == SINKS:
            found[target.removesuffix(".weight")] = _stored(blocks, order, offset)
        else:
            found[target] = _stored(blocks, order, offset)
    if known.stacked:
        _stack(path, found)
    if HEAD not in found:
        found[HEAD] = found[f"{OUTSIDE['token_embd']}.weight"]
    return found


def _stack(path: Path, found: dict[str, Stored]) -> None:
    """Join the projections of the experts as GPT-OSS has them: outputs of the gate and up projections in turns."""
    gate, up, down = STACKED
    for name in [name for name in found if name.endswith(f"{gate}.weight")]:
        base = name.removesuffix(f"{gate}.weight")
        parts = {kind: found.pop(f"{base}{kind}.weight", None) for kind in STACKED}
        biases = {kind: found.pop(f"{base}{kind}.bias", None) for kind in STACKED}
        first, second, last = (parts[kind] for kind in STACKED)
        stacks = isinstance(first, StackedWeight) and isinstance(second, StackedWeight)
        if not stacks or first.shape != second.shape or last is None or None in biases.values():  # type: ignore[union-attr]
            raise SourceError(f"{path}: {base} lacks a projection of its experts, or a bias. Download the file again.")
        pairs = zip(first.experts, second.experts, strict=True)  # type: ignore[union-attr]
        found[f"{base}gate_up_proj"] = StackedWeight(tuple(_in_turns(*pair) for pair in pairs))
        found[f"{base}down_proj"] = last
        found[f"{base}gate_up_proj_bias"] = _biases(biases[gate], biases[up])
        found[f"{base}down_proj_bias"] = biases[down]  # type: ignore[assignment]


def _in_turns(gate: Stored, up: Stored) -> Stored:
    """The rows of both in turns, with their numbers if they are grouped alike."""
    grouped = isinstance(gate, GroupedWeight) and isinstance(up, GroupedWeight)
    if grouped and gate.kind == up.kind:  # type: ignore[union-attr]
        return alternating(gate, up)  # type: ignore[arg-type]
    shape = (2 * gate.shape[0], gate.shape[1])
    form = gate.form if isinstance(gate, ComputedTensor) else ""

    def read() -> torch.Tensor:
        import torch

        return torch.stack([gate.tensor.float(), up.tensor.float()], 1).reshape(shape)

    return ComputedTensor(shape, read, form)


def _biases(gate: Any, up: Any) -> ComputedTensor:
    """[experts, outputs] of both as [experts, 2·outputs], in turns."""

    def read() -> torch.Tensor:
        import torch

        return torch.stack([gate.tensor.float(), up.tensor.float()], -1).reshape(len(gate.tensor), -1)

    return ComputedTensor((gate.shape[0], 2 * gate.shape[1]), read, "")


def _target(path: Path, name: str, known: Architecture) -> tuple[str, str]:
    """The name in transformers, and the last part of the one in the file."""
    if block := BLOCK.fullmatch(name):
        number, kind, last = block.groups()
        if kind in known.names:
            return f"model.layers.{number}.{known.names[kind]}.{last}", kind
    kind, _, last = name.rpartition(".")
    if kind in OUTSIDE and last in ("weight", "bias"):
        return f"{OUTSIDE[kind]}.{last}", kind
    raise SourceError(
        f"{path}: the tensor {name} is not part of a {known.model}, so the model could be another. Give the checkpoint "
        "that it was made from, with its config.json and safetensors."
    )


def rows_in_file(path: Path, name: str, rows: int, heads: int) -> npt.NDArray[np.int64]:
    """For each row of transformers that of the file: the pairs of a head there lie side by side, here in two halves."""
    if rows % (2 * heads):
        raise SourceError(f"{path}: {name} has {rows} rows, for {heads} heads. Download or copy the file again.")
    return np.arange(rows).reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)


def _part(blocks: StoredBlocks, index: int) -> StoredBlocks:
    """The matrix at `index` of the first axis."""
    shape = blocks.shape[1:]
    return replace(blocks, shape=shape, offset=blocks.offset + index * prod(shape[:-1]) * blocks.row_bytes)


def _stored(blocks: StoredBlocks, order: npt.NDArray[np.int64] | None, offset: float) -> Stored:
    """The tensor with its rows in `order`, `offset` subtracted."""
    kind = TYPES[blocks.type]
    if not kind.decode:
        if order is None and not offset:
            return _mapped(blocks)
        return ComputedTensor(blocks.shape, lambda: _floats(blocks, order, offset), "")
    size = kind.elements // kind.groups
    if len(blocks.shape) != 2 or size % smallest_group(kind.bits):
        return ComputedTensor(blocks.shape, lambda: _floats(blocks, order, offset), kind.name)

    def read() -> Groups:
        codes = _codes(blocks, order, 0, blocks.shape[0])
        rows = blocks.shape[0]
        scales = codes.scales.reshape(rows, -1)
        minimums = None if codes.minimums is None else codes.minimums.reshape(rows, -1)
        zeros = np.full(scales.shape, codes.zero_point, np.uint8)
        return Groups(pack(codes.numbers.reshape(rows, -1), kind.bits), scales, zeros, minimums)

    shape = blocks.shape[0], blocks.shape[1]
    return GroupedWeight(shape, kind.bits, size, read, has_minimums=kind.has_minimums, levels=kind.levels)


def _mapped(blocks: StoredBlocks) -> MappedTensor:
    """Numbers in floating point, which stay in the file."""
    import torch

    with blocks.path.open("rb") as file:
        return map_tensor(blocks.path, file, blocks.offset, blocks.shape, getattr(torch, TYPES[blocks.type].dtype))


def _codes(blocks: StoredBlocks, order: npt.NDArray[np.int64] | None, begin: int, end: int) -> Codes:
    """What the blocks of rows begin to end - 1 say."""
    kind, rows = TYPES[blocks.type], blocks.rows()
    assert kind.decode
    chosen = rows[begin:end] if order is None else rows[order[begin:end]]
    return kind.decode(np.ascontiguousarray(chosen).reshape(-1, kind.bytes))


def _floats(blocks: StoredBlocks, order: npt.NDArray[np.int64] | None, offset: float) -> torch.Tensor:
    """The numbers in float32, rounded once: scale times number takes at most 25 bits, with a minimum at most 22."""
    import torch

    kind = TYPES[blocks.type]
    if not kind.decode:
        tensor = _mapped(blocks).tensor.to(torch.float32)
        return (tensor if order is None else tensor[torch.from_numpy(order)]) - offset
    rows, width = prod(blocks.shape[:-1]), blocks.shape[-1]
    result = np.empty((rows, width), np.float32)
    step = max(AT_ONCE // max(width, 1), 1)
    for begin in range(0, rows, step):
        codes = _codes(blocks, order, begin, begin + step)
        steps = kind.levels[codes.numbers] if kind.levels is not None else codes.numbers - np.float32(codes.zero_point)
        numbers = steps.reshape(len(steps), kind.groups, -1)
        numbers *= codes.scales[:, :, None]
        if codes.minimums is not None:
            numbers -= codes.minimums[:, :, None]
        result[begin : begin + step] = numbers.reshape(-1, width)
    return torch.from_numpy(result.reshape(blocks.shape)) - offset
