"""The config.json of transformers that the keys of a GGUF file describe. A key that is not understood is refused."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from intaglio.errors import SourceError
from intaglio.exporters.checkpoints.gguf.architectures import ARCHITECTURES, Architecture
from intaglio.exporters.checkpoints.gguf.container import Container
from intaglio.exporters.checkpoints.quantized.formats import GGUF, METHOD, SECTION

ARCHITECTURE = "general.architecture"
# Keys of no consequence for the numbers, of the architecture: they repeat others, or describe the file.
WITHOUT_CONSEQUENCE = ("vocab_size", "tensor_data_layout", "rope.scaling.finetuned")
ROPE = ("rope.freq_base", "rope.dimension_count", "rope.scaling.type", "rope.scaling.factor")
SCALING = ("rope.scaling.original_context_length", "rope.scaling.attn_factor")
LOCAL = "rope.freq_base_swa"
WIDTHS = ("attention.key_length", "attention.value_length")
FREQUENCIES, LONG, SHORT = "rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"
IDS = {"bos_token_id": "bos_token_id", "eos_token_id": "eos_token_id", "padding_token_id": "pad_token_id"}
MORE_ENDS = ("eot_token_id", "eom_token_id")
COUNTS = ("embedding_length", "block_count", "attention.head_count", "context_length")
# Models whose full rotary embedding reaches over a part of a head state it so.
PARTIAL = ("phi3", "stablelm", "nemotron", "glm4")
LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


def architecture_of(path: Path, file: Container) -> Architecture:
    """The architecture of a file. Raises `SourceError` for one that is not known."""
    name = file.values.get(ARCHITECTURE)
    if name not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise SourceError(
            f"{path}: {ARCHITECTURE} is {str(name)[:40]!r}, and files of {known} are read. Give the checkpoint that it "
            "was made from, with its config.json and safetensors."
        )
    return ARCHITECTURES[str(name)]


def configuration(path: Path, file: Container) -> dict[str, Any]:
    """config.json. Raises `SourceError` for keys that are missing, or not understood."""
    known, name = architecture_of(path, file), str(file.values[ARCHITECTURE])
    given = {key.removeprefix(f"{name}."): each for key, each in file.values.items() if key.startswith(f"{name}.")}
    values = {key: _single(path, key, value) for key, value in given.items()}
    understood = {*known.keys, *WITHOUT_CONSEQUENCE, *ROPE, *SCALING, *WIDTHS, LOCAL}
    if unknown := sorted(values.keys() - understood):
        raise SourceError(
            f"{path}: {name}.{unknown[0]} is {str(values[unknown[0]])[:40]}, which is not understood here, so the "
            "model could be another. Give the checkpoint that it was made from, with its config.json and safetensors."
        )
    config = {**known.fixed, **{known.keys[key]: value for key, value in values.items() if key in known.keys}}
    if missing := sorted(known.keys.keys() - known.optional - values.keys()):
        raise SourceError(f"{path}: without {name}.{missing[0]}. Download or copy the file again.")
    for key in COUNTS:
        if type(values.get(key)) is not int or not 0 < values[key] < 1 << 30:
            raise SourceError(
                f"{path}: {name}.{key} is {values.get(key)!r}, expected a positive number. Download the file again."
            )
    config.setdefault("num_key_value_heads", config["num_attention_heads"])
    config["head_dim"] = _head_width(path, values, config)
    config |= {"model_type": known.model_type, "architectures": [known.model]}
    config |= known.complete(config, file.tensors)
    config |= _rotary(path, name, values, config, file)
    config["vocab_size"] = _vocabulary(path, file)
    # The rows of a quantised head are multiplied by their codes, those of the embedding are looked up: two weights.
    config["tie_word_embeddings"] = False
    config |= _special_tokens(file.values, config["vocab_size"])
    return config | {SECTION: {METHOD: GGUF}}


def _single(path: Path, key: str, value: Any) -> Any:
    """A value, of one for each layer the common one; numbers of 32 bits as their shortest decimals."""
    if isinstance(value, np.ndarray):
        if not value.size or (value != value.flat[0]).any():
            raise SourceError(f"{path}: {key} differs between layers, which is not supported. Export another model.")
        value = value.flat[0].item()
    return float(str(np.float32(value))) if isinstance(value, float) else value


def _head_width(path: Path, values: Mapping[str, Any], config: Mapping[str, Any]) -> int:
    """Of queries, keys and values."""
    heads, width = config["num_attention_heads"], config["hidden_size"]
    found = {values.get(key, width // heads) for key in WIDTHS}
    if len(found) > 1 or type(each := found.pop()) is not int or each < 1:
        raise SourceError(f"{path}: keys and values of different widths are not supported. Export another model.")
    return each


def _rotary(
    path: Path, name: str, values: Mapping[str, Any], config: Mapping[str, Any], file: Container
) -> dict[str, Any]:
    """The settings of the rotary embedding."""
    width, theta = config["head_dim"], values.get("rope.freq_base", 10000.0)
    settings: dict[str, Any] = {"rope_type": "default", "rope_theta": theta}
    result: dict[str, Any] = {}
    rotated = values.get("rope.dimension_count", width)
    if rotated != width and name not in PARTIAL:
        raise SourceError(f"{path}: {name}.rope.dimension_count is {rotated}, expected {width}, the width of a head.")
    if rotated != width:
        result["partial_rotary_factor"] = settings["partial_rotary_factor"] = rotated / width
    kind, factor = values.get("rope.scaling.type", "none"), values.get("rope.scaling.factor", 1.0)
    original = values.get("rope.scaling.original_context_length")
    if kind == "linear" and factor != 1:
        settings |= {"rope_type": "linear", "factor": factor}
    elif kind == "yarn" and factor != 1:
        settings |= {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original}
        settings |= {"truncate": False} if config["model_type"] == "gpt_oss" else {}
    elif kind not in ("none", "linear", "yarn", "longrope"):
        raise SourceError(
            f"{path}: {name}.rope.scaling.type is {kind!r}, which is not supported. Export another model."
        )
    if FREQUENCIES in file.tensors:
        settings |= _llama3(path, _numbers(file, FREQUENCIES), theta, rotated)
    if LONG in file.tensors and SHORT in file.tensors:
        settings |= {
            "rope_type": "longrope",
            "long_factor": _numbers(file, LONG).tolist(),
            "short_factor": _numbers(file, SHORT).tolist(),
            "original_max_position_embeddings": original,
        }
        result["original_max_position_embeddings"] = original
        if values.get("rope.scaling.attn_factor"):
            settings["attention_factor"] = values["rope.scaling.attn_factor"]
    elif values.get("rope.scaling.attn_factor", 1.0) != 1.0:
        raise SourceError(f"{path}: {name}.rope.scaling.attn_factor is not supported. Export another model.")
    if config["model_type"] == "gemma3_text":
        local = {"rope_type": "default", "rope_theta": values.get(LOCAL, 10000.0)}
        return {"rope_parameters": {"full_attention": settings, "sliding_attention": local}}
    if LOCAL in values and values[LOCAL] != theta:
        raise SourceError(f"{path}: {name}.{LOCAL} is {values[LOCAL]}, which is not supported. Export another model.")
    return {**result, "rope_parameters": settings}


def _llama3(path: Path, factors: np.ndarray[Any, Any], theta: float, width: int) -> dict[str, Any]:
    """The settings of LLaMA 3.1's frequencies, of which the file has what each is divided by."""
    factor = float(factors.max())
    expected = llama3_factors({**LLAMA3, "factor": factor}, theta, width)
    if factors.shape != expected.shape or not np.allclose(factors, expected, 1e-4):
        raise SourceError(
            f"{path}: {FREQUENCIES} is not what LLaMA 3.1 has, with {LLAMA3}. Give the checkpoint that it was made "
            "from, with its config.json and safetensors."
        )
    return {"rope_type": "llama3", "factor": factor, **LLAMA3}


def llama3_factors(settings: Mapping[str, Any], theta: float, width: int) -> np.ndarray[Any, Any]:
    """What the frequencies of LLaMA 3.1 are divided by, [width / 2]."""
    low, high = settings["low_freq_factor"], settings["high_freq_factor"]
    wavelengths = 2 * np.pi * theta ** (np.arange(0, width, 2) / width)
    smooth = np.clip((settings["original_max_position_embeddings"] / wavelengths - low) / (high - low), 0, 1)
    return np.asarray(1 / ((1 - smooth) / settings["factor"] + smooth))


def _numbers(file: Container, name: str) -> np.ndarray[Any, Any]:
    """A tensor of float32."""
    return np.ascontiguousarray(file.tensors[name].rows()).view("<f4").reshape(-1)


def _vocabulary(path: Path, file: Container) -> int:
    """Rows of the embedding."""
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise SourceError(f"{path}: no matrix token_embd.weight. Download the file again, or all its parts.")
    return embedding.shape[0]


def _special_tokens(values: Mapping[str, Any], vocabulary: int) -> dict[str, Any]:
    """Ids of tokens, as config.json has them: several ends where the file states several."""
    found = {name: values.get(f"tokenizer.ggml.{key}") for key, name in IDS.items()}
    ends = [values.get(f"tokenizer.ggml.{key}") for key in ("eos_token_id", *MORE_ENDS)]
    known = [end for end in dict.fromkeys(ends) if isinstance(end, int) and end < vocabulary]
    found["eos_token_id"] = known if len(known) > 1 else (known[0] if known else None)
    return found  # null where the file has none: those of the class may be beyond this vocabulary
