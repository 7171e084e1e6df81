"""llama.cpp as a peer of our decoders: a LLaMA checkpoint brought to its file format, quantised and run by itself.

    pip install llama-cpp-python gguf      (which compiles llama.cpp for this machine)

llama.cpp's own defaults, as its users meet them: the quantiser chooses what each matrix is stored in (Q3_K is what
llama-quantize takes that name for, Q3_K_M: 3 to 5 bits), and the head gets 6 bits. Only flash attention is switched on,
which llama.cpp has by default and the Python binding has not; it is faster so.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import logging
from collections.abc import Callable, Iterator, Sequence
from math import prod
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from intaglio.exporters.checkpoints.checkpoint import CONFIG, WEIGHTS
from intaglio.exporters.checkpoints.safetensors_file import read_header

Generate = Callable[[Sequence[int]], Iterator[int]]  # a prompt -> the tokens after it, greedily, without end

NEEDS = ("llama_cpp", "gguf")
FORMATS = {"Q4_0": "LLAMA_FTYPE_MOSTLY_Q4_0", "Q3_K": "LLAMA_FTYPE_MOSTLY_Q3_K_M", "Q2_K": "LLAMA_FTYPE_MOSTLY_Q2_K"}


def missing() -> str:
    """Why llama.cpp cannot run here, or nothing."""
    absent = [module for module in NEEDS if importlib.util.find_spec(module) is None]
    return f"{', '.join(absent)} not installed. Install with: pip install 'intaglio[peers]'" if absent else ""


def version() -> str:
    """The package's version, and the instructions that llama.cpp was compiled for."""
    import llama_cpp

    instructions = llama_cpp.llama_print_system_info().decode().strip(" |\n")
    return f"llama-cpp-python {importlib.metadata.version('llama-cpp-python')}: {instructions}"


def write_gguf(checkpoint: Path, path: Path) -> Path:
    """Write the float16 LLaMA `checkpoint` as GGUF to `path`, one tensor at a time, without a vocabulary."""
    import gguf

    config = msgspec.json.decode((checkpoint / CONFIG).read_bytes())
    entries, start = read_header(checkpoint / WEIGHTS)
    writer = gguf.GGUFWriter(path, "llama")
    _write_config(writer, config)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    for name, entry in entries.items():
        dtype = np.dtype(np.float32 if len(entry.shape) == 1 else np.float16)
        target = names.get_name(name, try_suffixes=(".weight",))
        writer.add_tensor_info(target, entry.shape, dtype, prod(entry.shape) * dtype.itemsize)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for name, entry in entries.items():
        offset = start + entry.data_offsets[0]
        weight = np.memmap(checkpoint / WEIGHTS, np.float16, "r", offset, tuple(entry.shape))
        writer.write_tensor_data(_as_llama_cpp_has_it(name, weight, config))
    writer.close()
    return path


def _write_config(writer: Any, config: dict[str, Any]) -> None:
    import gguf

    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.add_tokenizer_model("none")
    writer.add_vocab_size(config["vocab_size"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])


def _as_llama_cpp_has_it(name: str, weight: npt.NDArray[Any], config: dict[str, Any]) -> npt.NDArray[Any]:
    """Vectors in float32; rows of queries and keys in its order, which rotates neighbours and not the two halves."""
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    for projection, count in heads.items():
        if f".{projection}." in name:
            halves = weight.reshape(count, 2, -1, weight.shape[1])
            return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(weight.shape)
    return weight.astype(np.float32) if weight.ndim == 1 else weight


def quantized(name: str, checkpoint: Path, folder: Path) -> Path:
    """The GGUF file of `checkpoint` in the format `name` of `FORMATS`, made in `folder` unless it is there."""
    target, source = folder / f"{name}.gguf", folder / "F16.gguf"
    if not target.exists():
        if not source.exists():
            write_gguf(checkpoint, _partial(source)).rename(source)
        _quantize(source, _partial(target), name)
        _partial(target).rename(target)
    return target


def _partial(path: Path) -> Path:
    """Where a file lies while it is being written, lest an interrupted one be taken for whole the next time."""
    return path.with_suffix(".partial")


def _quantize(source: Path, target: Path, name: str) -> None:
    import llama_cpp

    logging.getLogger("llama-cpp-python").setLevel(logging.ERROR)  # it would print a line for each weight
    parameters = llama_cpp.llama_model_quantize_default_params()
    parameters.ftype = getattr(llama_cpp, FORMATS[name])
    code = llama_cpp.llama_model_quantize(str(source).encode(), str(target).encode(), ctypes.byref(parameters))
    if code != 0:
        raise RuntimeError(f"llama.cpp could not quantise {source} to {name} (code {code})")


def open_model(path: Path, threads: int) -> Generate:
    """Open a GGUF file; the function returned generates greedily, from an empty cache each time."""
    import llama_cpp

    model = llama_cpp.Llama(
        str(path), n_ctx=512, n_threads=threads, n_threads_batch=threads, flash_attn=True, verbose=False
    )

    def generate(prompt: Sequence[int]) -> Iterator[int]:
        model.reset()
        yield from model.generate(list(prompt), temp=0.0)

    return generate
