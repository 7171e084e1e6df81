"""Bundles in an S3-compatible store, by HTTP: the server is moto's, which `make storage-test` installs."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from stored_bundles import contents, make_bundle

from intaglio.errors import BundleError, StorageError
from intaglio.storage.fetch import fetch
from intaglio.storage.upload import STAGE, destination

s3fs = pytest.importorskip("s3fs")
server = pytest.importorskip("moto.server")
# A session of aiobotocore is closed when its file system is collected, which may be after the server has stopped.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
Run = Callable[..., tuple[int, str, str]]
ADDRESS = "s3://models/shared/tiny"


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """The URL of a server."""
    running = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    yield f"http://{host}:{port}"
    running.stop()


@pytest.fixture
def store(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The file system of a server with an empty bucket `models`; the environment names the server."""
    for name, value in {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "a-secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_MAX_ATTEMPTS": "1",
    }.items():
        monkeypatch.setenv(name, value)
    files = s3fs.S3FileSystem(use_listings_cache=False, skip_instance_cache=True)
    files.mkdir("models")
    yield files
    files.rm("models", recursive=True)


def write(force: bool = False, **files: bytes) -> dict[str, bytes]:
    with destination(ADDRESS, force) as path:
        return contents(make_bundle(path, **files))


def test_round_trip_has_the_same_bytes(store: Any) -> None:
    written = write(a=b"1", large=bytes(range(256)) * (6 << 12))  # more than one part
    assert contents(fetch(ADDRESS)) == written
    assert sorted(store.find("models")) == sorted(f"models/shared/tiny/{name}" for name in written)


def test_replaced_bundle_is_the_new_one(store: Any) -> None:
    write(a=b"1", b=b"22")
    written = write(force=True, a=b"1", c=b"333")
    assert contents(fetch(ADDRESS)) == written
    assert len(store.find("models")) == len(written)


def test_commands_read_and_write_addresses(store: Any, intaglio: Run, tiny_bundle: Path) -> None:
    code, _, err = intaglio("compress", tiny_bundle, "-o", ADDRESS, "--recipe", "float16")
    assert (code, err) == (0, "")
    code, out, err = intaglio("run", ADDRESS, "A sentence.", "--json")
    assert (code, err) == (0, "") and len(json.loads(out)["embedding"]) == 32
    assert intaglio("inspect", ADDRESS, "--json")[0] == 0
    code, _, err = intaglio("compress", tiny_bundle, "-o", ADDRESS, "--recipe", "float16")
    assert (code, err.count("\n")) == (2, 1) and "holds a bundle. Add --force to replace it" in err


def test_interrupted_upload_leaves_nothing(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*given: Any, **named: Any) -> None:
        raise ConnectionError("a wire broke")

    with monkeypatch.context() as patched:
        patched.setattr(s3fs.S3FileSystem, "cp_file", broken)
        with pytest.raises(StorageError, match="no connection to the server"):
            write(a=b"1", b=b"22")
    assert not store.find("models")


def test_manifest_is_written_last(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe_file = s3fs.S3FileSystem.pipe_file
    before: list[str] = []

    def seeing(self: Any, path: str, *given: Any, **named: Any) -> None:
        before.extend(name for name in store.find("models") if STAGE not in name)
        pipe_file(self, path, *given, **named)

    monkeypatch.setattr(s3fs.S3FileSystem, "pipe_file", seeing)
    write(a=b"1", b=b"22")
    assert before == ["models/shared/tiny/parts/a.bin", "models/shared/tiny/parts/b.bin"]


def test_damaged_object_is_one_line(store: Any) -> None:
    write(a=b"1", b=b"22")
    store.pipe_file("models/shared/tiny/parts/b.bin", b"XX")
    with pytest.raises(BundleError, match=r"^s3://models/shared/tiny/parts/b\.bin: SHA-256 .*, expected .*--force\.$"):
        fetch(ADDRESS)


def test_missing_bucket_and_bundle_are_told_apart(store: Any, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"^s3://nowhere/tiny: no such bucket"):
        fetch("s3://nowhere/tiny")
    with pytest.raises(BundleError, match=r"no bundle\.json there"):
        fetch(ADDRESS)
    with pytest.raises(StorageError, match=r"^s3://nowhere/tiny: no such bucket"), destination("s3://nowhere/tiny"):
        raise AssertionError("the work begins")


def test_server_that_does_not_run_is_one_line_without_its_address(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        with monkeypatch.context() as patched:
            patched.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
            with pytest.raises(BundleError, match="no connection to the server") as caught:
                fetch(ADDRESS)
    assert str(port) not in str(caught.value)


def test_missing_credentials_are_one_line(store: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "nothing"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(StorageError, match="no credentials were found"), destination(ADDRESS):
        raise AssertionError("the work begins")


def test_manifest_has_no_credentials_and_no_server(store: Any, endpoint: str) -> None:
    write(a=b"1")
    manifest = store.cat_file("models/shared/tiny/bundle.json").decode()
    assert json.loads(manifest)["files"] and "a-secret" not in manifest and endpoint not in manifest
