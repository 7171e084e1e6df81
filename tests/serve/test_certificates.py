"""Invalid TLS files are rejected at startup."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from intaglio.errors import UsageError
from intaglio.serve.server import serve


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("pipe", "is a pipe, expected a regular file. Give PEM files."),
        ("/dev/zero", "is a device, expected a regular file. Give PEM files."),
        ("folder", "is a folder, expected a regular file. Give PEM files."),
        ("missing", "No such file or directory. Give PEM files."),
        ("garbage", "Give PEM files."),
        ("large", "expected at most 1048576. Give PEM files."),
    ],
)
def test_invalid_certificate_is_a_one_line_error(kind: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / kind
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind in ("garbage", "large"):
        path.write_bytes(bytes(range(256)) * (8000 if kind == "large" else 1))
    start = time.monotonic()
    with pytest.raises(UsageError) as refused:
        serve(["no-such-bundle"], tls_cert=path, tls_key=path)
    assert time.monotonic() - start < 10
    assert str(refused.value).startswith(f"--tls-cert {path}") and str(refused.value).endswith(message)
    assert "\n" not in str(refused.value)
