"""Addresses are told from paths, and what is wrong with one is one line without credentials and servers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from intaglio.errors import BundleError, MissingExtraError, StorageError, UsageError
from intaglio.storage.address import is_address, open_place, place_errors


@pytest.mark.parametrize(
    "address", ["s3://models/llama", "S3://models/llama", "file:///mnt/llama", "gs://models/llama"]
)
def test_addresses(address: str) -> None:
    assert is_address(address)


@pytest.mark.parametrize(
    "place",
    ["llama", "./llama", "org/llama", "a:b", "C:/x", "http://host:8000", "https://host/v1", "", Path("s3://a/b")],
)
def test_paths_hub_ids_and_servers_are_no_addresses(place: object) -> None:
    assert not is_address(place)


def test_place_has_the_name_of_its_last_folder() -> None:
    pytest.importorskip("fsspec")
    place = open_place("memory://models/llama/")
    assert (place.address, place.name, place.path("a")) == ("memory://models/llama", "llama", "/models/llama/a")


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("gs://models/llama", "the scheme is 'gs', expected one of file, memory, s3"),
        ("s3://", "expected s3://PLACE/FOLDER"),
        ("file:///", "expected file://PLACE/FOLDER"),
        ("memory://models/../llama", "expected memory://PLACE/FOLDER"),
    ],
)
def test_wrong_addresses_are_one_line(address: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        open_place(address)


def test_credentials_in_an_address_are_not_shown() -> None:
    with pytest.raises(UsageError, match="taken from the environment") as caught:
        open_place("s3://KEY:SECRET@models/llama")
    assert "KEY:" not in str(caught.value) and "SECRET@" not in str(caught.value)


def test_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'intaglio\[storage\]'"):
        open_place("s3://models/llama")


class NoCredentialsError(Exception):
    """As botocore's."""


class EndpointConnectionError(ConnectionError):
    """As botocore's."""


class ClientError(Exception):
    """As botocore's, with the server's answer."""

    response = {"Error": {"Code": "SlowDown"}}  # noqa: RUF012


SERVER = "http://secret.example:9000"


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (FileNotFoundError("The specified bucket does not exist"), "no such bucket"),
        (PermissionError(SERVER), "no permission. Check AWS_ACCESS_KEY_ID"),
        (NoCredentialsError(SERVER), "no credentials were found. Check AWS_ACCESS_KEY_ID"),
        (
            EndpointConnectionError(SERVER),
            "no connection to the server. Check that it runs, and its address in AWS_ENDP",
        ),
        (TimeoutError(SERVER), "no connection to the server"),
        (ClientError(SERVER), r"failed with ClientError \(SlowDown\)"),
        (ValueError(SERVER), "failed with ValueError. Check the address"),
    ],
)
def test_errors_of_a_store_are_one_line_without_its_server(error: Exception, line: str) -> None:
    for kind in (BundleError, StorageError):
        with (
            pytest.raises(kind, match=f"^s3://models/llama: {line}") as caught,
            place_errors("s3://models/llama", kind),
        ):
            raise error
        assert SERVER not in str(caught.value)


@pytest.mark.parametrize(
    "error", [FileNotFoundError("a key"), TypeError("a bug"), OSError(28, "No space left on device")]
)
def test_errors_that_others_explain_are_left(error: Exception) -> None:
    with pytest.raises(type(error)), place_errors("s3://models/llama", BundleError):
        raise error


def test_local_paths_import_no_file_system(tmp_path: Path) -> None:
    code = f"""
import sys
from intaglio.bundle.bundle import Bundle
from intaglio.errors import BundleError
try:
    Bundle.open({str(tmp_path)!r})
except BundleError:
    print([name for name in ("fsspec", "s3fs", "botocore", "aiohttp") if name in sys.modules])
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
