"""Addresses of bundles, such as s3://models/llama, and the file systems of fsspec that they are in.

fsspec and s3fs are an extra and load slowly: they are imported when an address is opened, never for a local path.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeGuard

from intaglio.errors import BundleError, IntaglioError, StorageError, UsageError, full_errno
from intaglio.extras import load

# Scheme -> arguments of its file system. An S3-compatible server is named by AWS_ENDPOINT_URL.
SCHEMES: dict[str, dict[str, bool]] = {"file": {"auto_mkdir": True}, "memory": {}, "s3": {}}
SERVERS = ("http", "https")  # of servers with OpenAI's API, which some commands take in place of a bundle
_ADDRESS = re.compile(r"([a-z][a-z0-9+.-]*)://(.*)", re.IGNORECASE | re.DOTALL)
CREDENTIALS = (
    "Check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, in the environment, and what they allow."
)
# Classes of botocore and aiohttp, which are not imported for this: names of an error's class or its bases.
NO_CREDENTIALS = {"NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError", "ProfileNotFound"}
NO_CONNECTION = {"ConnectionError", "HTTPClientError", "ClientConnectionError", "TimeoutError"}
BUGS = (AssertionError, AttributeError, MemoryError, NameError, TypeError)  # reported as they are


def is_address(place: object) -> TypeGuard[str]:
    """Whether `place` is an address, not a path, a hub id or the URL of a server."""
    found = _ADDRESS.fullmatch(place) if isinstance(place, str) else None
    return found is not None and found[1].lower() not in SERVERS


def check_local(place: object, named: str) -> None:
    """Raise `UsageError` if `place`, which is `named` in the message, is an address."""
    if is_address(place):
        raise UsageError(f"{named} is an address, and only a local path can be used here.")


class Place(NamedTuple):
    """A bundle's address, its file system, and its folder there."""

    address: str
    files: Any  # an AbstractFileSystem of fsspec
    root: str

    @property
    def name(self) -> str:
        """The last folder, which a bundle is named after."""
        return self.root.rpartition("/")[2]

    def path(self, relative: str) -> str:
        """The path of a file of the bundle in the file system."""
        return f"{self.root}/{relative}"


def open_place(address: str) -> Place:
    """The place at `address`; no server is asked yet. Raises `UsageError` and `MissingExtraError`."""
    found = _ADDRESS.fullmatch(address)
    scheme = found[1].lower() if found else ""
    if found is None or scheme not in SCHEMES:
        raise UsageError(f"{address}: the scheme is {scheme!r}, expected one of {', '.join(SCHEMES)}.")
    if "@" in found[2].partition("/")[0]:
        raise UsageError(
            f"an address {scheme}://…@… has credentials in it, which would be shown and logged. Leave them out: "
            "they are taken from the environment, such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY."
        )
    if not found[2].strip("/") or ".." in found[2].split("/"):
        raise UsageError(f"{address}: expected {scheme}://PLACE/FOLDER, the folder of a bundle.")
    fsspec = load("fsspec")
    if scheme == "s3":
        load("s3fs")
    # Neither what was listed before nor the credentials of an earlier call are kept.
    with place_errors(address, StorageError):
        files = fsspec.filesystem(scheme, use_listings_cache=False, skip_instance_cache=True, **SCHEMES[scheme])
        root = files._strip_protocol(address.rstrip("/"))
    return Place(f"{scheme}://{found[2].rstrip('/')}", files, root)


@contextmanager
def place_errors(address: str, kind: type[BundleError] | type[StorageError]) -> Iterator[None]:
    """Convert errors of a file system into one line, as `kind`.

    Texts of libraries are left out, as they name the server. A full local disk is left to `storage_errors`, a missing
    file to the caller, who knows what it means, unless the bucket is missing.
    """
    try:
        yield
    except (IntaglioError, *BUGS):
        raise
    except Exception as error:
        names = {each.__name__ for each in type(error).__mro__}
        if full_errno(error) is not None:
            raise
        if isinstance(error, FileNotFoundError):
            if not lacks_bucket(error):
                raise
            raise kind(f"{address}: no such bucket. Check its name, or create it first.") from error
        if isinstance(error, PermissionError) or names & NO_CREDENTIALS:
            denied = "no credentials were found" if names & NO_CREDENTIALS else "no permission"
            fix = CREDENTIALS if address.startswith("s3:") else "Choose a place that you may use."
            raise kind(f"{address}: {denied}. {fix}") from error
        if names & NO_CONNECTION:
            raise kind(
                f"{address}: no connection to the server. Check that it runs, and its address in AWS_ENDPOINT_URL."
            ) from error
        raise kind(f"{address}: failed with {type(error).__name__}{_code(error)}. Check the address.") from error


def lacks_bucket(error: OSError) -> bool:
    """Whether a file is missing because its bucket is, in the words of S3."""
    return "bucket does not exist" in str(error)


def _code(error: BaseException) -> str:
    """The code that an S3 server answered, such as " (SlowDown)"; "" without one."""
    answered = next(
        (each for each in (error, error.__cause__) if isinstance(getattr(each, "response", None), dict)), None
    )
    code = answered.response.get("Error", {}).get("Code", "") if answered is not None else ""  # type: ignore[attr-defined]
    return f" ({code})" if re.fullmatch(r"\w{1,60}", str(code)) else ""
