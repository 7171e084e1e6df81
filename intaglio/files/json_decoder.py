"""Decoders of JSON for code that several threads may run."""

from __future__ import annotations

import threading
from typing import TypeVar

import msgspec

Kind = TypeVar("Kind")

_preparing = threading.Lock()


def json_decoder(kind: type[Kind]) -> msgspec.json.Decoder[Kind]:
    """The decoder to `kind`, in some microseconds. Afterwards `msgspec.convert` to it is safe in threads too.

    msgspec prepares a type where it is used first, and crashes where two threads do that at the same time.
    """
    with _preparing:
        return msgspec.json.Decoder(kind)
