"""Requests and responses of Triton's Python backend; `triton_python_backend_utils` exists only in the server."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
import triton_python_backend_utils as server

from intaglio.deploy.triton.serving.settings import TEXT
from intaglio.errors import BusyError, IntaglioError, UsageError, one_line

Settings = TypeVar("Settings", bound=msgspec.Struct)


def version_folder(arguments: Mapping[str, str]) -> Path:
    """The folder that model.py is in."""
    return Path(arguments["model_repository"], arguments["model_version"])


def settings_of(arguments: Mapping[str, str], kind: type[Settings]) -> Settings:
    """The parameters of config.pbtxt; those of Triton itself are left out."""
    given = json.loads(arguments["model_config"]).get("parameters", {})
    return msgspec.convert({name: each["string_value"] for name, each in given.items()}, kind, strict=False)


def array_of(request: Any, name: str) -> Any:
    """The array of an input; None for an optional one that is not given."""
    found = server.get_input_tensor_by_name(request, name)
    return None if found is None else found.as_numpy()


def texts_of(request: Any, name: str = TEXT) -> list[str]:
    """The texts of a request, in order. Raises `UsageError` for bytes that are not UTF-8."""
    try:
        return [text.decode() for text in array_of(request, name).reshape(-1)]
    except UnicodeDecodeError as error:
        raise UsageError(f"{name}: {one_line(error)}. Send UTF-8.") from error


def tensor(name: str, values: Any, dtype: Any = np.object_) -> Any:
    """An output; of texts, if no dtype is given."""
    return server.Tensor(name, np.asarray(values, dtype))


def failure(error: Exception) -> Any:
    """The response for a request that failed; a full queue and what a client can fix have codes of their own."""
    code = server.TritonError.INTERNAL
    if isinstance(error, BusyError):
        code = server.TritonError.UNAVAILABLE
    elif isinstance(error, UsageError):
        code = server.TritonError.INVALID_ARG
    text = one_line(error) if isinstance(error, IntaglioError) else f"{type(error).__name__}: {one_line(error)}"
    return server.InferenceResponse(error=server.TritonError(text, code))
