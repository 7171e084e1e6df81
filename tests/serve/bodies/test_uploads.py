"""Forms with a recording: any piece boundaries, and hostile clients."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request

from intaglio.serve.bodies.uploads import FORM_BYTES, MAX_PARTS, UPLOADS_AT_A_TIME, Upload, Uploads
from intaglio.serve.options import UPLOAD_RATE, ServerOptions
from intaglio.serve.responses.errors import ApiError

BOUNDARY = b"----boundary"
KIND = "multipart/form-data; boundary=----boundary"
AUDIO = b"RIFF\r\n------boundar\r\n--" + bytes(range(256)) * 8  # nearly the boundary
Form = list[tuple[str, str]]


def part(name: str, value: bytes, more: str = "") -> bytes:
    head = f'--{BOUNDARY.decode()}\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n'
    return head.encode() + value + b"\r\n"


END = b"--" + BOUNDARY + b"--\r\n"
WHOLE = part("model", b"m") + part("file", AUDIO, '; filename="../../etc/passwd"') + part("language", b"en") + END


def read(uploads: Uploads, pieces: Iterable[bytes], pause: float = 0, **headers: str) -> tuple[Form, Upload]:
    given = {"content-type": KIND, "host": "server:8000", **{key.replace("_", "-"): v for key, v in headers.items()}}
    waiting = iter(pieces)

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(pause)
        body = next(waiting, None)
        return {"type": "http.request", "body": body or b"", "more_body": body is not None}

    scope = {"type": "http", "method": "POST", "headers": [(k.encode(), v.encode()) for k, v in given.items()]}
    return asyncio.run(uploads.read(Request(scope, receive)))


def refused(uploads: Uploads, pieces: Iterable[bytes], **options: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        read(uploads, pieces, **options)
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where uploads are written; nothing is written elsewhere."""
    path = tmp_path / "uploads"
    path.mkdir()
    return path


@given(st.integers(1, len(WHOLE)))
def test_form_is_parsed_equally_for_any_pieces(tmp_path_factory: pytest.TempPathFactory, size: int) -> None:
    folder = tmp_path_factory.mktemp("cut")
    pieces = [WHOLE[at : at + size] for at in range(0, len(WHOLE), size)]
    fields, upload = read(Uploads(folder, ServerOptions()), pieces)
    assert fields == [("model", "m"), ("language", "en")]
    assert upload.path == folder / "0"  # not the client's name
    assert upload.path.read_bytes() == AUDIO
    upload.close()
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "the form is truncated"),
        (b"nonsense", "the body is not a valid form"),
        (part("file", AUDIO), "the form is truncated"),
        (WHOLE[:-6], "the form is truncated"),
        (part("model", b"m") + END, "file: is missing"),
        (part("file", AUDIO) * 2 + END, "file: is there twice"),
        (part("", AUDIO) + END, "a part of the form has no name"),
        (b"------boundary\r\nContent-Type: a/b\r\n\r\nx\r\n" + END, "a part of the form has no name"),
        (part("model", b"\xff\xfe") + END, "model: is not UTF-8"),
        (part("file", b"a") + part("model", b"m") * MAX_PARTS + END, f"more than {MAX_PARTS} fields"),
        (part("prompt", b"a" * FORM_BYTES) + END, f"fields have more than {FORM_BYTES} bytes"),
        (part("a", b"b", "; x=" + "y" * FORM_BYTES) + END, "the body is not a valid form"),
        ((b"------boundary\r\n" + b"X: y\r\n" * 50_000), "the body is not a valid form"),
    ],
)
def test_malformed_form_is_rejected_and_leaves_no_file(folder: Path, body: bytes, message: str) -> None:
    uploads = Uploads(folder, ServerOptions())
    error = refused(uploads, [body])
    assert message in str(error)
    assert error.status in (400, 413)
    assert (list(folder.iterdir()), uploads._used) == ([], 0)


@pytest.mark.parametrize(
    ("headers", "status", "message"),
    [
        ({"content_type": "application/json"}, 415, "expected multipart/form-data"),
        ({"content_type": "multipart/form-data"}, 400, "has no boundary"),
        ({"content_type": f"multipart/form-data; boundary={'b' * 4000}"}, 400, "not a valid form"),
        ({"content_length": str(1 << 60)}, 413, "the maximum"),
        ({"origin": "https://elsewhere.example"}, 403, "may not send forms"),
        ({"origin": "null"}, 403, "may not send forms"),
    ],
)
def test_invalid_header_is_rejected_before_reading_the_body(
    folder: Path, headers: dict[str, str], status: int, message: str
) -> None:
    def body() -> Iterable[bytes]:
        raise AssertionError("the body was read")
        yield b""

    error = refused(Uploads(folder, ServerOptions()), body(), **headers)
    assert (error.status, message in str(error)) == (status, True), str(error)


def test_same_and_allowed_origins_may_send_forms(folder: Path) -> None:
    uploads = Uploads(folder, ServerOptions(cors_origins=("https://app.example",)))
    for origin in ("http://server:8000", "https://app.example"):
        read(uploads, [WHOLE], origin=origin)[1].close()
    read(Uploads(folder, ServerOptions(cors_origins=("*",))), [WHOLE], origin="null")[1].close()


def test_too_large_recording_is_rejected_while_it_arrives(folder: Path) -> None:
    options = ServerOptions(max_audio_seconds=10)
    sent = []

    def body() -> Iterable[bytes]:
        yield part("file", b"")[:-2]
        while True:
            sent.append(1 << 16)
            yield bytes(1 << 16)

    error = refused(Uploads(folder, options), body())
    assert (error.status, error.body.error.param) == (413, "file")
    assert f"more than {10 * UPLOAD_RATE} bytes" in str(error)
    assert sum(sent) < 10 * UPLOAD_RATE + FORM_BYTES + (1 << 17)
    assert list(folder.iterdir()) == []


def test_uploads_share_a_byte_budget(folder: Path) -> None:
    options = ServerOptions(max_audio_seconds=1)
    uploads = Uploads(folder, options)
    large = part("file", bytes(UPLOAD_RATE - 1000)) + END
    held = [read(uploads, [large])[1] for _ in range(UPLOADS_AT_A_TIME)]
    error = refused(uploads, [large])
    assert (error.status, error.retry_after) == (429, 1)
    held[0].path.unlink()  # as when it is opened: its bytes are still there
    assert refused(uploads, [large]).status == 429
    for upload in held:
        upload.close()
        upload.close()
    read(uploads, [large])[1].close()
    assert (uploads._used, list(folder.iterdir())) == (0, [])


def test_too_slow_upload_is_aborted(folder: Path) -> None:
    uploads = Uploads(folder, ServerOptions(body_timeout=0.1))
    pieces = [WHOLE[at : at + 100] for at in range(0, len(WHOLE), 100)]
    assert refused(uploads, pieces, pause=0.02).status == 408
    steady = [part("file", b"")[:-2], *[bytes(10_000)] * 20, b"\r\n" + END]
    _, upload = read(uploads, steady, pause=0.02)  # 0.4 seconds
    assert upload.path.stat().st_size == 200_000
    upload.close()
    assert (uploads._used, list(folder.iterdir())) == (0, [])


def test_memory_is_independent_of_the_recordings_size(folder: Path) -> None:
    piece = bytes(1 << 16)
    tracemalloc.start()
    try:
        _, upload = read(Uploads(folder, ServerOptions()), [part("file", b"")[:-2], *[piece] * 500, b"\r\n" + END])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert upload.path.stat().st_size == 500 << 16
    assert peak < 1 << 20
    upload.close()


def test_disk_error_is_a_server_error(tmp_path: Path) -> None:
    error = refused(Uploads(tmp_path / "missing", ServerOptions()), [WHOLE])
    assert (error.status, error.body.error.type) == (503, "server_error")
    assert str(tmp_path) not in str(error)
