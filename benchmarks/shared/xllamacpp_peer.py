"""llama.cpp's server as a peer, in this process: `pip install xllamacpp`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

Completion = Callable[[Sequence[int], int], dict[str, float]]  # prompt and tokens to write -> timings


def open_server(gguf: Path, threads: int, slots: int, kind: str = "f16", keeps: bool = False) -> Completion:
    """Open a GGUF file, with flash attention and caches of `kind` for `slots` tokens; `keeps`: the last prompt's."""
    import xllamacpp

    options: Any = xllamacpp.CommonParams()
    options.model.path = str(gguf)
    options.n_ctx = slots
    options.n_parallel, options.cpuparams.n_threads, options.cpuparams_batch.n_threads = 1, threads, threads
    options.cache_type_k = options.cache_type_v = getattr(xllamacpp.ggml_type, f"GGML_TYPE_{kind.upper()}")
    options.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_ENABLED
    options.warmup = options.use_color = False
    options.verbosity = -1
    server = xllamacpp.Server(options)

    def complete(prompt: Sequence[int], tokens: int) -> dict[str, float]:
        request = {"prompt": list(prompt), "n_predict": tokens, "temperature": 0.0, "ignore_eos": True}
        timings: dict[str, float] = server.handle_completions({**request, "cache_prompt": keeps})["timings"]
        assert timings["predicted_n"] == tokens, timings
        return timings

    return complete
