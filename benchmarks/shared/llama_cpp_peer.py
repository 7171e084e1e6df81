"""llama.cpp as a peer of our decoders: a LLaMA checkpoint converted to its file format, quantised and run by itself.

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
import time
from collections.abc import Callable, Iterator, Sequence
from math import prod
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from intaglio.exporters.checkpoints.checkpoint import CONFIG, WEIGHTS
from intaglio.files.safetensors_header import read_header
from intaglio.runtime.text.tokenizer import TOKENIZER

Completion = Callable[[Sequence[int], int], dict[str, float]]  # a prompt, tokens to write after its first -> times
Generate = Callable[[Sequence[int]], Iterator[int]]  # a prompt -> the tokens after it, greedily, without end

CONTEXT = 2048  # tokens
NEEDS = ("llama_cpp", "gguf")
FORMATS = {
    "F16": "",
    "Q4_0": "LLAMA_FTYPE_MOSTLY_Q4_0",
    "Q3_K": "LLAMA_FTYPE_MOSTLY_Q3_K_M",
    "Q2_K": "LLAMA_FTYPE_MOSTLY_Q2_K",
}


def missing() -> str:
    """Why llama.cpp cannot run here, or nothing."""
    absent = [module for module in NEEDS if importlib.util.find_spec(module) is None]
    return f"{', '.join(absent)} not installed. Install with: pip install 'intaglio[peers]'" if absent else ""


def unsupported(checkpoint: Path) -> str:
    """Why a checkpoint cannot be written for llama.cpp here, or nothing."""
    dtypes = {entry.dtype for entry in read_header(checkpoint / WEIGHTS)[0].values()}
    return (
        "" if dtypes == {"F16"} else f"{checkpoint.name} has weights in {', '.join(sorted(dtypes))}, expected float16"
    )


def version() -> str:
    """The package's version, and the instructions that llama.cpp was compiled for."""
    import llama_cpp

    instructions = llama_cpp.llama_print_system_info().decode().strip(" |\n")
    return f"llama-cpp-python {importlib.metadata.version('llama-cpp-python')}: {instructions}"


def write_gguf(checkpoint: Path, path: Path, vocabulary: bool = False) -> Path:
    """Write the float16 LLaMA `checkpoint` as GGUF to `path`, one tensor at a time, with or without a vocabulary."""
    import gguf

    config = msgspec.json.decode((checkpoint / CONFIG).read_bytes())
    entries, start = read_header(checkpoint / WEIGHTS)
    writer = gguf.GGUFWriter(path, "llama")
    write_config(writer, config)
    if vocabulary:
        write_vocabulary(writer, checkpoint / TOKENIZER, config)
    else:
        writer.add_tokenizer_model("none")
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


def write_config(writer: Any, config: dict[str, Any]) -> None:
    """Write the hyper-parameters of a LLaMA's config.json."""
    import gguf

    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.add_vocab_size(config["vocab_size"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config.get("rope_parameters", config)["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])


def write_vocabulary(writer: Any, path: Path, config: dict[str, Any]) -> None:
    """The byte-level BPE of `random_llama`; what a text is split into before it differs, and the tokens with it."""
    import gguf

    tokenizer = msgspec.json.decode(path.read_bytes())
    ids = tokenizer["model"]["vocab"] | {each["content"]: each["id"] for each in tokenizer["added_tokens"]}
    special = {each["id"] for each in tokenizer["added_tokens"] if each["special"]}
    tokens = sorted(ids, key=ids.__getitem__)
    kinds = [gguf.TokenType.CONTROL if ids[token] in special else gguf.TokenType.NORMAL for token in tokens]
    merges = [each if isinstance(each, str) else " ".join(each) for each in tokenizer["model"]["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])


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
    if not source.exists():
        write_gguf(checkpoint, _partial(source)).rename(source)
    if not target.exists():
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


def _opened(path: Path, threads: int, slots: int, kind: str = "f16") -> Any:
    import llama_cpp

    cache = getattr(llama_cpp, f"GGML_TYPE_{kind.upper()}")
    return llama_cpp.Llama(
        str(path),
        n_ctx=slots,
        n_threads=threads,
        n_threads_batch=threads,
        flash_attn=True,
        type_k=cache,
        type_v=cache,
        verbose=False,
    )


def open_model(path: Path, threads: int) -> Generate:
    """Open a GGUF file; the function returned generates greedily, from an empty cache each time."""
    model = _opened(path, threads, CONTEXT)

    def generate(prompt: Sequence[int]) -> Iterator[int]:
        model.reset()
        yield from model.generate(list(prompt), temp=0.0)

    return generate


def open_timed(path: Path, threads: int, slots: int, kind: str = "f16", keeps: bool = False) -> Completion:
    """Open a GGUF file; the times of the function returned are in milliseconds, under the names of llama.cpp's server.

    `kind`: of the caches for `slots` tokens; `keeps`: what a prompt shares with the last one is not read again.
    """
    model = _opened(path, threads, slots, kind)

    def complete(prompt: Sequence[int], tokens: int) -> dict[str, float]:
        if not keeps:
            model.reset()
        began = time.perf_counter()
        written = model.generate(list(prompt), temp=0.0)
        next(written)
        read = time.perf_counter()
        for _ in range(tokens):
            next(written)
        return {"prompt_ms": 1e3 * (read - began), "predicted_ms": 1e3 * (time.perf_counter() - read)}

    return complete


def side_by_side(checkpoint: Path, folder: Path, threads: int, prompts: Sequence[int], written: Sequence[int]) -> float:
    """Tokens a second of texts in sequences of one context, all there from the start, greedily.

    `prompts` and `written` are the tokens of each. A sequence at its end leaves the batch.
    """
    import llama_cpp

    llama_cpp.llama_backend_init()
    path = str(quantized("Q4_0", checkpoint, folder)).encode()
    model = llama_cpp.llama_model_load_from_file(path, llama_cpp.llama_model_default_params())
    parameters = llama_cpp.llama_context_default_params()
    parameters.n_ctx, parameters.n_batch, parameters.n_seq_max = 4096, 2048, len(prompts)
    parameters.n_threads = parameters.n_threads_batch = threads
    context = llama_cpp.llama_init_from_model(model, parameters)
    vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    batch = llama_cpp.llama_batch_init(2048, 0, 1)

    def run(tokens: Sequence[tuple[int, int, int, bool]]) -> list[int]:
        """Run (token, position, sequence, logits wanted) and choose a token after each that is wanted of."""
        batch.n_tokens = len(tokens)
        for place, (token, position, sequence, wanted) in enumerate(tokens):
            batch.token[place], batch.pos[place], batch.logits[place] = token, position, wanted
            batch.n_seq_id[place], batch.seq_id[place][0] = 1, sequence
        if llama_cpp.llama_decode(context, batch):
            raise RuntimeError("llama.cpp could not run a batch")
        rows = [place for place, each in enumerate(tokens) if each[3]]
        logits = (np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(context, row), (vocabulary,)) for row in rows)
        return [int(each.argmax()) for each in logits]

    def write() -> float:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
        began = time.perf_counter()
        read = [
            (100 + place, place, sequence, place == count - 1)
            for sequence, count in enumerate(prompts)
            for place in range(count)
        ]
        last, running = run(read), list(range(len(prompts)))
        for done in range(1, max(written)):
            running, last = zip(*((s, t) for s, t in zip(running, last, strict=True) if written[s] > done), strict=True)
            last = run([(t, prompts[s] + done - 1, s, True) for s, t in zip(running, last, strict=True)])
        return sum(written) / (time.perf_counter() - began)

    write()  # warms up
    return write()
