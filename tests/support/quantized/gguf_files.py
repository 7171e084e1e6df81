"""Small GGUF files, written by llama.cpp's own library from checkpoints of transformers."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from intaglio.exporters.checkpoints.gguf.architectures import ARCHITECTURES, OUTSIDE

# What a tiny model of an architecture needs beside its sizes.
WINDOWS = ["sliding_attention"] * 3 + ["full_attention"]
OPTIONS: dict[str, dict[str, Any]] = {
    "cohere2": {"num_hidden_layers": 4, "layer_types": WINDOWS, "logit_scale": 0.3},
    "command-r": {"logit_scale": 0.3},
    "gemma2": {"query_pre_attn_scalar": 16},
    "gemma3": {
        "query_pre_attn_scalar": 16,
        "num_hidden_layers": 6,
        "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
    },
    "gpt-oss": {
        "layer_types": ["sliding_attention", "full_attention"],
        "rope_parameters": {"rope_type": "default", "rope_theta": 15e4},
    },
    "glm4": {"partial_rotary_factor": 0.5},
    "nemotron": {"partial_rotary_factor": 0.5},
    "qwen2moe": {"decoder_sparse_step": 1, "mlp_only_layers": []},
    "qwen3moe": {"decoder_sparse_step": 1, "mlp_only_layers": [], "norm_topk_prob": True},
    "smollm3": {"num_hidden_layers": 4, "no_rope_layer_interval": 4, "no_rope_layers": [1, 1, 1, 0]},
    "stablelm": {"partial_rotary_factor": 0.5, "use_qkv_bias": True, "use_parallel_residual": False},
}
WITHOUT_WINDOWS = {"sliding_window": None, "use_sliding_window": False}  # of those whose windows GGUF does not state
EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(.*)")


def options(architecture: str) -> dict[str, Any]:
    """The options of `save_family` for a model of an architecture of GGUF."""
    known = ARCHITECTURES[architecture]
    plain = {} if "attention.sliding_window" in known.keys else WITHOUT_WINDOWS
    # The width of a head as those configurations compute it that do not have it.
    return {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16, **plain, **OPTIONS.get(architecture, {})}


def write_gguf(
    checkpoint: Path,
    path: Path,
    architecture: str,
    types: Mapping[str, str] | None = None,
    values: Mapping[str, Any] | None = None,
    tensors: Mapping[str, np.ndarray[Any, Any]] | None = None,
) -> Path:
    """Write a checkpoint as an F32 file, and weights whose names match one of the patterns `types` in its type.

    `values` and `tensors` are written, too, and take the place of what there is; a value of None leaves a key out.
    """
    import gguf
    from safetensors.numpy import load_file

    config = _config(checkpoint)
    writer = gguf.GGUFWriter(path, architecture)
    stored = {**_settings(architecture, config), **_tokenizer(checkpoint, config["vocab_size"]), **(values or {})}
    for key, value in stored.items():
        _write(writer, key, value)
    found = _tensors(architecture, config, load_file(checkpoint / "model.safetensors"))
    for name, array in {**found, **(tensors or {})}.items():
        kind = next((kind for pattern, kind in (types or {}).items() if re.search(pattern, name)), "F32")
        if kind == "F32" or array.ndim == 1:
            writer.add_tensor(name, np.ascontiguousarray(array.astype(np.float32)))
        else:
            number = gguf.GGMLQuantizationType[kind]
            writer.add_tensor(name, blocks(array, kind), raw_dtype=number)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _config(checkpoint: Path) -> dict[str, Any]:
    """The configuration by the names that transformers knows its numbers by; some are stored under others."""
    from transformers import AutoConfig

    read = AutoConfig.from_pretrained(checkpoint)
    names = {name for known in ARCHITECTURES.values() for name in known.keys.values()}
    return read.to_dict() | {name: getattr(read, name) for name in names if hasattr(read, name)}


def blocks(array: np.ndarray[Any, Any], kind: str) -> np.ndarray[Any, Any]:
    """`array` in a type; one that the library cannot quantise to gets blocks of random numbers of a like size."""
    import gguf

    number = gguf.GGMLQuantizationType[kind]
    try:
        return gguf.quants.quantize(array.astype(np.float32), number)
    except NotImplementedError:
        elements, size = gguf.GGML_QUANT_SIZES[number]
        shape = (*array.shape[:-1], array.shape[-1] // elements, size)
        random = np.random.default_rng(array.size).integers(0, 256, shape, np.uint8)
        for at in HALVES[kind]:
            random[..., at : at + 2] = np.frombuffer(np.float16(array.std() / SPREADS[kind]).tobytes(), np.uint8)
        if kind == "MXFP4":
            random[..., 0] = 124
        return random.reshape(*array.shape[:-1], -1)


# Where the float16 factors of a block are, and what the numbers that they multiply are about as large as.
HALVES = {
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
    "MXFP4": (),
}
SPREADS = {"Q2_K": 15, "Q3_K": 60, "Q4_K": 400, "Q5_K": 800, "Q6_K": 1300, "IQ4_NL": 60, "IQ4_XS": 1000, "MXFP4": 1}


def _write(writer: Any, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    elif value is not None:
        writer.add_array(key, value)


def _settings(architecture: str, config: dict[str, Any]) -> dict[str, Any]:
    """The architecture's own keys."""
    known = ARCHITECTURES[architecture]
    found = {key: config.get(name) for key, name in known.keys.items()}
    width = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    rotary = config["rope_parameters"]
    whole = rotary.get("full_attention", rotary)
    share = whole.get("partial_rotary_factor", config.get("partial_rotary_factor") or 1)
    found |= {"attention.key_length": width, "attention.value_length": width}
    found |= {"rope.freq_base": float(whole["rope_theta"]), "rope.dimension_count": int(width * share)}
    return {f"{architecture}.{key}": value for key, value in found.items()}


def _tokenizer(checkpoint: Path, size: int) -> dict[str, Any]:
    tokenizer = json.loads((checkpoint / "tokenizer.json").read_text())
    added = {each["content"]: each["id"] for each in tokenizer["added_tokens"]}
    ids = tokenizer["model"]["vocab"] | added
    tokens = [*sorted(ids, key=ids.__getitem__), "~~"]  # llama.cpp needs a merge
    kinds = [3 if token in added else 1 for token in tokens] + [5] * (size - len(tokens))
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": [*tokens, *(f"[PAD{index}]" for index in range(len(tokens), size))],
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": ["~ ~"],
        "tokenizer.ggml.eos_token_id": ids["<|end|>"],
        "tokenizer.ggml.add_bos_token": False,
    }


def _tensors(architecture: str, config: dict[str, Any], tensors: Mapping[str, Any]) -> dict[str, Any]:
    """The tensors as llama.cpp names and orders them."""
    known = ARCHITECTURES[architecture]
    names = {path: name for name, path in known.names.items()} | {path: name for name, path in OUTSIDE.items()}
    found: dict[str, Any] = {}
    experts: dict[str, dict[int, Any]] = {}
    for path, array in tensors.items():
        base, _, last = path.rpartition(".")
        if expert := EXPERT.fullmatch(base):
            block, kind = expert[1].split(".")[2], names[f"{'.'.join(expert[1].split('.')[3:])}.{{}}.{expert[3]}"]
            experts.setdefault(f"blk.{block}.{kind}.{last}", {})[int(expert[2])] = array
            continue
        if ".mlp.experts." in path:  # of GPT-OSS
            block, kind, last = path.split(".")[2], path.split(".")[-1], "bias" if path.endswith("bias") else "weight"
            whole = array if last == "bias" else array.swapaxes(1, 2)  # [experts, outputs, inputs]
            if kind.startswith("down"):
                found[f"blk.{block}.ffn_down_exps.{last}"] = whole
            else:
                found[f"blk.{block}.ffn_gate_exps.{last}"] = whole[:, 0::2]
                found[f"blk.{block}.ffn_up_exps.{last}"] = whole[:, 1::2]
            continue
        if path.endswith(".sinks"):
            found[f"blk.{path.split('.')[2]}.attn_sinks.weight"] = array
            continue
        if base in OUTSIDE.values():
            name = f"{names[base]}.{last}"
        else:
            _, _, block, *rest = base.split(".")
            name = f"blk.{block}.{names['.'.join(rest)]}.{last}"
        kind = name.split(".")[-2]
        if known.interleaved and kind in ("attn_q", "attn_k"):
            heads = config["num_attention_heads" if kind == "attn_q" else "num_key_value_heads"]
            array = array.reshape(heads, 2, -1, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)
        offset = known.norm_offset if path.endswith("norm.weight") else 0
        found[name] = array + np.float32(offset)
    return found | {name: np.stack([each[index] for index in sorted(each)]) for name, each in experts.items()}
