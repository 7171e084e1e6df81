"""Read a tokenizer.json, which may be damaged, or not be one."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intaglio.bundle.manifest import LONGEST
from intaglio.errors import BundleError, one_line
from intaglio.files.input_files import read_text
from intaglio.processes.freed_memory import return_freed_memory

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

TRIAL = "abc, a trial: 1, 2 and \u00e9 \u4e16 \U0001f600\n"


def read_tokenizer(path: Path) -> tuple[Backend, Mapping[str, Any], int | None, str]:
    """The tokenizer without padding and truncation, the file's padding settings, its truncation's length and side.

    Encoding and decoding are tried once. Raises `BundleError`.
    """
    from tokenizers import Tokenizer as Backend

    text = read_text(path, error=BundleError, fix="Re-export the bundle.")
    try:
        with _without_panics():
            backend = Backend.from_str(text)
            padding, truncation = backend.padding or {}, backend.truncation or {}
            cut, direction = truncation.get("max_length"), str(truncation.get("direction", "right")).lower()
            if cut is not None and not 1 <= cut <= LONGEST:
                raise ValueError(f"truncation.max_length is {cut}, expected 1 to {LONGEST}")
            backend.no_padding()
            backend.no_truncation()
            for trial in ("", TRIAL):
                backend.decode(backend.encode(trial).ids)
    except BaseException as error:  # the library raises bare Exception, and a Rust panic is not even that
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        reason = one_line(error, 200)
        raise BundleError(f"{path}: not a readable tokenizer ({reason}). Re-export the bundle.") from error
    del text
    return_freed_memory()
    return backend, padding, cut, direction


@contextmanager
def _without_panics() -> Iterator[None]:
    """Suppress the many lines that Rust writes to standard error before it raises."""
    try:
        kept = os.dup(2)
    except OSError:  # it is closed
        yield
        return
    if sys.stderr is not None:
        sys.stderr.flush()
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    os.close(nothing)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
