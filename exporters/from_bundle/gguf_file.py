"""A checkpoint in one GGUF file: the weights in blocks that have the same numbers, the model's keys, the tokenizer."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from intaglio.bundle.bundle import Decoder
from intaglio.errors import SourceError, one_line
from intaglio.exporters.checkpoints.checkpoint import Checkpoint
from intaglio.exporters.checkpoints.gguf.architectures import ARCHITECTURES, OUTSIDE, Architecture
from intaglio.exporters.checkpoints.gguf.block_encoding import encoded
from intaglio.exporters.checkpoints.gguf.blocks import TYPES
from intaglio.exporters.checkpoints.gguf.configuration import ARCHITECTURE
from intaglio.exporters.checkpoints.gguf.container_writing import NewTensor, write_container
from intaglio.exporters.checkpoints.gguf.keys import check_same, model_keys
from intaglio.exporters.checkpoints.gguf.tokenizer_keys import check_same_tokens, tokenizer_keys
from intaglio.exporters.checkpoints.gguf.weights import PERMUTED, rows_in_file
from intaglio.exporters.checkpoints.quantized.formats import StoredTensor
from intaglio.exporters.checkpoints.quantized.grouped_weight import GroupedWeight, rows_of
from intaglio.exporters.from_bundle.folder import narrowed
from intaglio.exporters.from_bundle.graph_weights import HEAD, WEIGHT, GraphWeights
from intaglio.extras import load

BLOCK = re.compile(r"model\.layers\.(\d+)\.(.+)\.(weight|bias)")
EXPERT = re.compile(r"(.*\.experts\.)(\d+)(\..*)")
EMBEDDING = f"model.embed_tokens{WEIGHT}"
NUMBER = {kind.dtype: number for number, kind in TYPES.items() if kind.dtype}  # of types in floating point


def write_gguf(path: Path, weights: GraphWeights, bundle: Path, name: str, decoder: Decoder) -> list[str]:
    """Write the weights as `path`, with the configuration and the tokenizer in the folder `bundle`.

    Returns notes for the user. Raises `SourceError` for what a file of GGUF does not hold exactly.
    """
    config = _configuration(bundle)
    keys, own = model_keys(config)
    known = ARCHITECTURES[keys[ARCHITECTURE]]
    if (table := weights.tensors.get(EMBEDDING)) is None:
        raise SourceError(f"{bundle}: its graph has no weight called {EMBEDDING}. Write --format compressed-tensors.")
    keys |= tokenizer_keys(bundle, table.shape[0], decoder.bos_token_id, decoder.eos_token_ids)
    tensors = {
        each: NewTensor(array.shape, NUMBER["float32"], lambda array=array: array.tobytes())  # type: ignore[misc]
        for each, array in own.items()
    }
    preferred = str(getattr(config, "dtype", "") or "").removeprefix("torch.")
    stored = {each: weight for each, weight in weights.tensors.items() if not (weights.tied and each == HEAD)}
    for target, parts in _by_name(stored, known).items():
        tensors[target] = _tensor(target, parts, known, config, preferred)
    write_container(path, {"general.name": name, **keys}, tensors)
    opened = Checkpoint.open(str(path))
    check_same(config, _configuration(opened.folder))
    check_same_tokens(bundle, opened.folder)
    used = sorted({TYPES[each.type].name for each in tensors.values()})
    return [f"types of the tensors: {', '.join(used)}"]


def _configuration(folder: Path) -> Any:
    """The config.json in `folder` as transformers completes it. Raises `SourceError`."""
    try:
        return load("transformers").AutoConfig.from_pretrained(str(folder), trust_remote_code=False)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SourceError(
            f"{folder}: its config.json cannot be read ({one_line(error, 160)}). Export it again."
        ) from error


def _by_name(weights: Mapping[str, StoredTensor], known: Architecture) -> dict[str, list[tuple[str, StoredTensor]]]:
    """The weights by their names in the file; those of all experts of a block have one, in order."""
    inside = {path: name for name, path in known.names.items()}
    outside = {path: name for name, path in OUTSIDE.items()}
    found: dict[str, dict[int, tuple[str, StoredTensor]]] = {}
    for name, weight in weights.items():
        expert = EXPERT.fullmatch(name)
        general = f"{expert[1]}{{}}{expert[3]}" if expert else name
        block, (path, _, last) = BLOCK.fullmatch(general), general.rpartition(".")
        if block and block[2] in inside:
            target = f"blk.{block[1]}.{inside[block[2]]}.{block[3]}"
        elif path in outside:
            target = f"{outside[path]}.{last}"
        else:
            raise SourceError(
                f"{name}: a file of {known.model_type} in GGUF has no such tensor. Write --format compressed-tensors."
            )
        found.setdefault(target, {})[int(expert[2]) if expert else 0] = name, weight
    return {target: [each for _, each in sorted(parts.items())] for target, parts in found.items()}


def _tensor(
    target: str, parts: Sequence[tuple[str, StoredTensor]], known: Architecture, config: Any, preferred: str
) -> NewTensor:
    """A tensor of the file, of one weight or of those of all experts."""
    name, first = parts[0]
    kind = target.split(".")[-2]
    order = None
    if known.interleaved and kind in PERMUTED:
        heads = config.num_attention_heads if kind == PERMUTED[0] else config.num_key_value_heads
        order = np.argsort(rows_in_file(Path(name), target, first.shape[0], heads))
    shape = first.shape if len(parts) == 1 and "exps" not in kind else (len(parts), *first.shape)
    grouped = [each for _, each in parts if isinstance(each, GroupedWeight)]
    if len(grouped) == len(parts):
        ordered = grouped if order is None else [rows_of(each, order) for each in grouped]
        type_ = encoded(name, ordered)[0]
        return NewTensor(shape, type_, lambda: encoded(name, ordered)[1].tobytes())

    def floats() -> Any:
        import torch

        whole = torch.stack([each.tensor for _, each in parts]).reshape(shape)
        whole = whole if order is None else whole[torch.from_numpy(order)]
        if not (known.norm_offset and name.endswith(f"norm{WEIGHT}")):
            return whole
        shifted = whole + known.norm_offset
        if not torch.equal(shifted - known.norm_offset, whole):
            raise SourceError(
                f"{name}: its numbers plus {known.norm_offset}, as GGUF has them, are rounded in float32."
            )
        return shifted

    # llama.cpp computes with vectors in float32 alone.
    dtype = str(narrowed(floats(), preferred).dtype).removeprefix("torch.") if len(shape) > 1 else "float32"

    def data() -> bytes:
        import torch

        return bytes(floats().to(getattr(torch, dtype)).contiguous().view(torch.uint8).numpy())

    return NewTensor(shape, NUMBER[dtype], data)
