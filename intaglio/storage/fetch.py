"""Fetch a bundle from an address to the local cache, where it is an ordinary bundle: ONNX Runtime maps local files."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec

from intaglio.bundle.manifest import MANIFEST, MAX_MANIFEST_BYTES, FileRecord
from intaglio.bundle.manifest_reading import decode_manifest
from intaglio.display.progress import fraction
from intaglio.errors import BundleError, storage_errors
from intaglio.files.atomic import atomic_file, atomic_write
from intaglio.files.hashes import inside, sha256
from intaglio.files.json_decoder import json_decoder
from intaglio.storage.address import Place, is_address, lacks_bucket, open_place, place_errors
from intaglio.storage.cache import bundle_cache

KEY = 32  # hex digits of the manifest's hash, the name of a folder in the cache


def local_bundle(bundle: str | Path) -> Path:
    """The path of a bundle; one at an address is fetched. Raises as `fetch`."""
    return fetch(str(bundle)) if is_address(bundle) else Path(bundle)


def fetch(address: str) -> Path:
    """The local folder with the bundle at `address`, whose last part is the bundle's name.

    The manifest is read each time; of its files only those that are not in the cache, as part of any bundle. Each is
    written under a temporary name, compared with the manifest's hash, and renamed; the manifest comes last. So any
    number of processes may fetch the same bundle. Raises `BundleError`, `StorageError`, `UsageError`.
    """
    place = open_place(address)
    data = read_place_manifest(place)
    if data is None:
        raise BundleError(f"{place.address}: no {MANIFEST} there. Give the address of a bundle's folder.")
    files = decode_manifest(data, place.path(MANIFEST)).files
    folder = bundle_cache() / hashlib.sha256(data).hexdigest()[:KEY] / place.name
    targets = {name: inside(folder, name, f"{place.address}/{MANIFEST}") for name in files}
    missing = {name: record for name, record in files.items() if not _is_there(targets[name], record)}
    if missing:
        kept = _kept()
        with fraction(f"fetching {place.address}") as report:
            total, done = sum(record.bytes for record in missing.values()), 0
            for name, record in missing.items():
                with storage_errors(targets[name]):
                    targets[name].parent.mkdir(parents=True, exist_ok=True)
                with atomic_file(targets[name]) as partial:
                    known = kept.get(record.sha256)
                    if known is None or not _copied(known, partial, record):
                        _download(place, name, record, partial, data, part(report, done, total))
                done += record.bytes
    manifest = folder / MANIFEST
    if not manifest.is_file() or manifest.read_bytes() != data:
        with storage_errors(manifest):
            folder.mkdir(parents=True, exist_ok=True)
        atomic_write(manifest, data)
    return folder


def read_place_manifest(place: Place) -> bytes | None:
    """The manifest at `place`; None if there is none. Raises `BundleError` for one that is too large, too."""
    with place_errors(place.address, BundleError):
        try:
            data: bytes = place.files.cat_file(place.path(MANIFEST), start=0, end=MAX_MANIFEST_BYTES + 1)
        except (FileNotFoundError, NotADirectoryError) as error:
            if lacks_bucket(error):
                raise
            return None
    if len(data) > MAX_MANIFEST_BYTES:
        raise BundleError(f"{place.address}/{MANIFEST}: more than {MAX_MANIFEST_BYTES} bytes. It is no bundle.")
    return data


def _is_there(file: Path, record: FileRecord) -> bool:
    """Whether a file is in the cache, by its size: opening the bundle compares the hash."""
    return file.is_file() and file.stat().st_size == record.bytes


class _Files(msgspec.Struct):
    """The part of a manifest that lists files."""

    files: dict[str, FileRecord] = {}


def _kept() -> dict[str, Path]:
    """The files of all whole bundles in the cache, by hash."""
    found = {}
    for manifest in bundle_cache().glob(f"*/*/{MANIFEST}"):
        try:
            files = json_decoder(_Files).decode(manifest.read_bytes()).files
        except (OSError, msgspec.DecodeError):  # removed meanwhile, or damaged: fetched again
            continue
        found.update({record.sha256: manifest.parent / name for name, record in files.items()})
    return found


def _copied(source: Path, target: Path, record: FileRecord) -> bool:
    """Copy a file of the cache; False if it is no longer as recorded."""
    if not _is_there(source, record):
        return False
    shutil.copyfile(source, target)
    return sha256(target) == record.sha256


def part(report: Callable[[float], None], before: int, total: int) -> Callable[[int], None]:
    """The function that reports the bytes of one file as a fraction of all files."""
    return lambda done: report((before + done) / total if total else 1.0)


def _download(
    place: Place, name: str, record: FileRecord, target: Path, manifest: bytes, report: Callable[[int], None]
) -> None:
    """Write one file of the bundle at `place` to `target`. Raises `BundleError` for another content than recorded."""
    problem = "missing"
    with place_errors(place.address, BundleError):
        try:
            size = place.files.info(place.path(name))["size"]
            if size != record.bytes:
                problem = f"{size} bytes, expected {record.bytes}"
            else:
                place.files.get_file(place.path(name), str(target), callback=transfer(report))
                actual = sha256(target)
                if actual == record.sha256:
                    return
                problem = f"SHA-256 {actual[:12]}…, expected {record.sha256[:12]}…"
        except FileNotFoundError:
            pass
    if read_place_manifest(place) != manifest:
        raise BundleError(f"{place.address}: was replaced while it was fetched. Run the command again.")
    raise BundleError(f"{place.address}/{name}: {problem}. Write the bundle to this address again, with --force.")


def transfer(report: Callable[[int], None]) -> object:
    """The callback of fsspec that reports the bytes of a file so far."""
    from fsspec.callbacks import Callback

    class Transfer(Callback):  # type: ignore[misc]
        """Reports bytes; a file system sets them or adds to them."""

        def call(self, hook_name: str | None = None, **values: object) -> None:
            report(self.value)

    return Transfer()
