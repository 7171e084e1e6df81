"""The execution context of a TensorRT-RTX engine: with CUDA graphs of its own, and the code that it compiled before.

TensorRT-RTX finishes compiling on the GPU, when a context runs, which takes seconds; and it captures CUDA graphs
itself, also of shapes that change. The compiled code is kept in `$XDG_CACHE_HOME/intaglio/rtx` (`~/.cache/intaglio/...`
by default), a file for each engine, library and GPU.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

from intaglio.errors import StorageError
from intaglio.files.atomic import atomic_write
from intaglio.files.hashes import cache_directory
from intaglio.runtime.engines.tensorrt.graph_replay import DISABLED


def location(engine: str, library: str, gpu: str) -> Path:
    """The file with the code of an engine, by its SHA-256, as `library`, with its version, compiled it for a GPU."""
    return cache_directory() / "rtx" / f"{engine[:32]}-{library.replace(' ', '-')}-{gpu}.code"


class RtxContext:
    """A context of `engine`, a `tensorrt_rtx.ICudaEngine`, whose code is kept in the file `code`.

    `context` is None if TensorRT-RTX makes none. Older versions keep no code and capture no graphs.
    """

    def __init__(self, trt: Any, engine: Any, code: Path) -> None:
        self._code = code
        self._cache: Any = None
        self._stored = b""
        config = engine.create_runtime_config() if hasattr(engine, "create_runtime_config") else None
        if config is None:
            self.context: Any = engine.create_execution_context()
            return
        if hasattr(config, "cuda_graph_strategy") and os.environ.get(DISABLED) != "0":
            config.cuda_graph_strategy = trt.CudaGraphStrategy.WHOLE_GRAPH_CAPTURE
        if hasattr(config, "create_runtime_cache"):
            self._cache = config.create_runtime_cache()
            with contextlib.suppress(OSError):
                self._stored = code.read_bytes()
            if self._stored and not self._cache.deserialize(self._stored):  # of another version, or damaged
                self._stored = b""
            config.set_runtime_cache(self._cache)
        self.context = engine.create_execution_context(config)

    def close(self) -> None:
        """Keep the code; failure to do so only makes the next start slower."""
        if self._cache is None:
            return
        cache, self._cache = self._cache, None
        with contextlib.suppress(OSError, StorageError):
            compiled = bytes(cache.serialize() or b"")
            if compiled and compiled != self._stored:
                self._code.parent.mkdir(parents=True, exist_ok=True)
                atomic_write(self._code, compiled)
