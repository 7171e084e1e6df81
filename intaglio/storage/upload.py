"""Write a bundle to an address, whole or not at all.

The bundle is made in a local folder. Its files are then uploaded to a folder `.intaglio-upload-*` at the address, which
takes as long as the network needs and changes nothing that a reader sees. The last step is short, as the server copies
by itself:

1. The manifest of a bundle that is replaced is removed: a new reader finds no bundle, and one that has read the
   manifest compares the hashes, so that it never takes a mixture.
2. The uploaded files are copied to their names, and those of the old bundle that the new one lacks are removed.
3. The manifest is written.

If step 2 or 3 fails, the files of both are removed.
"""

from __future__ import annotations

import functools
import inspect
import secrets
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import ParamSpec, TypeVar

import msgspec

from intaglio import interrupts
from intaglio.bundle.manifest import MANIFEST, FileRecord
from intaglio.bundle.manifest_reading import decode_manifest
from intaglio.display.progress import fraction
from intaglio.errors import BundleError, StorageError, UsageError, storage_errors
from intaglio.files.hashes import inside
from intaglio.processes.temporary import temporary_directory
from intaglio.storage.address import Place, is_address, lacks_bucket, open_place, place_errors
from intaglio.storage.cache import bundle_cache
from intaglio.storage.fetch import fetch, part, read_place_manifest, transfer

Arguments = ParamSpec("Arguments")
Written = TypeVar("Written", bound=msgspec.Struct)
STAGE = ".intaglio-upload-"  # begins the folder of files that are not published


@contextmanager
def destination(address: str, force: bool = False) -> Iterator[Path]:
    """Yield the local path to write a bundle to, which is uploaded to `address` if the block succeeds.

    The address is checked first: it must be free, or with `force` hold a bundle. Raises `StorageError`, `UsageError`.
    """
    place = open_place(address)
    check_place(place, force)
    cache = bundle_cache()
    with storage_errors(cache):
        cache.mkdir(parents=True, exist_ok=True)
    with temporary_directory(cache, "upload-") as folder:
        yield folder / place.name
        upload(folder / place.name, place, force)


def uploads(*local_with: str) -> Callable[[Callable[Arguments, Written]], Callable[Arguments, Written]]:
    """A decorator for a verb with the arguments `output` and `force`, and the field `bundle` in its result.

    The verb writes to a local path, and its bundle is uploaded to an `output` that is an address. `local_with`: the
    options with which it writes something else or more, and only to a local path.
    """

    def give(verb: Callable[Arguments, Written]) -> Callable[Arguments, Written]:
        signature = inspect.signature(verb)

        @functools.wraps(verb)
        def uploading(*given: Arguments.args, **named: Arguments.kwargs) -> Written:
            bound = signature.bind(*given, **named)
            output = bound.arguments["output"]
            if not is_address(output):
                return verb(*given, **named)
            if option := next((name for name in local_with if bound.arguments.get(name)), None):
                raise UsageError(f"output {output}: with --{option} it is a local path only. Choose one.")
            with destination(output, bound.arguments.get("force", False)) as local:
                bound.arguments["output"] = local
                result = verb(*bound.args, **bound.kwargs)
            return msgspec.structs.replace(result, bundle=output)

        return uploading

    return give


@contextmanager
def revision(address: str) -> Iterator[Path]:
    """Yield a local copy of the bundle at `address` to add files to; it replaces that bundle if the block succeeds.

    Raises `StorageError` if another program replaced the bundle meanwhile, and as `fetch`.
    """
    place, fetched = open_place(address), fetch(address)
    with temporary_directory(bundle_cache(), "upload-") as folder:
        local = Path(shutil.copytree(fetched, folder / place.name))
        yield local
        upload(local, place, force=True, replaces=(fetched / MANIFEST).read_bytes())


def check_place(place: Place, force: bool) -> None:
    """Reject a place that holds a bundle (without `force`) or other files, or is inside a bundle."""
    with place_errors(place.address, StorageError):
        above = place.root.rpartition("/")[0]
        while above.strip("/"):
            if place.files.exists(f"{above}/{MANIFEST}"):
                raise UsageError(f"output {place.address}: is inside another bundle. Choose an address outside it.")
            above = above.rpartition("/")[0]
        if place.files.exists(place.path(MANIFEST)):
            if not force:
                raise UsageError(
                    f"output {place.address}: holds a bundle. Add --force to replace it, or choose another address."
                )
        elif others := [name for name in _listed(place) if name and not name.startswith(STAGE)]:
            raise UsageError(
                f"output {place.address}: holds {others[0]!r} and no {MANIFEST}, and only bundles are replaced. Choose "
                "another address, or remove the files."
            )


def _listed(place: Place) -> list[str]:
    """The names in the folder of `place`."""
    try:
        found: list[str] = place.files.ls(place.root, detail=False)
    except FileNotFoundError as error:
        if lacks_bucket(error):
            raise
        return []
    return [path.rstrip("/").removeprefix(place.root).strip("/") for path in found]


def upload(bundle: Path, place: Place, force: bool, replaces: bytes | None = None) -> None:
    """Write the local `bundle` to `place`, see above.

    `replaces`: the manifest that must still be there, whose files are not uploaded again. Without it all are, as those
    that are there may be damaged.
    """
    data = (bundle / MANIFEST).read_bytes()
    new = decode_manifest(data, bundle / MANIFEST).files
    old = _recorded(place) if force else {}
    kept = {} if replaces is None else old
    changed = {name: record for name, record in new.items() if not _is_there(place, name, record, kept)}
    stage = place._replace(root=place.path(f"{STAGE}{secrets.token_hex(4)}"))
    try:
        with place_errors(place.address, StorageError), fraction(f"uploading to {place.address}") as report:
            total, done = sum(record.bytes for record in changed.values()), 0
            for name, record in changed.items():
                progress = transfer(part(report, done, total))
                place.files.put_file(str(bundle / name), stage.path(name), callback=progress)
                done += record.bytes
        interrupts.check()
        # Another program may have written a bundle meanwhile.
        if not force:
            check_place(place, force)
        if replaces is not None and read_place_manifest(place) != replaces:
            raise StorageError(f"{place.address}: was replaced meanwhile, and left as it is. Run the command again.")
        with interrupts.deferred():
            _publish(place, stage, changed, data, new, old)
    finally:
        with suppress(Exception):
            place.files.rm(stage.root, recursive=True)


def _recorded(place: Place) -> dict[str, FileRecord]:
    """The files of the bundle that is replaced; none where its manifest is damaged."""
    data = read_place_manifest(place)
    try:
        files = {} if data is None else decode_manifest(data, place.path(MANIFEST)).files
        for name in files:
            inside(Path(place.root), name, place.path(MANIFEST))
    except BundleError:
        return {}
    return files


def _is_there(place: Place, name: str, record: FileRecord, old: dict[str, FileRecord]) -> bool:
    """Whether the bundle that is replaced has this very file."""
    with place_errors(place.address, StorageError), suppress(FileNotFoundError):
        return old.get(name) == record and place.files.info(place.path(name))["size"] == record.bytes
    return False


def _publish(
    place: Place,
    stage: Place,
    changed: Iterable[str],
    manifest: bytes,
    new: Collection[str],
    old: Collection[str],
) -> None:
    """Steps 1 to 3 above: replace a bundle with the files `old`, if any, by one with `new`; `changed` are staged."""
    try:
        with place_errors(place.address, StorageError):
            _remove(place, [MANIFEST])
            for name in changed:
                place.files.cp_file(stage.path(name), place.path(name))
            _remove(place, [name for name in old if name not in new])
            place.files.pipe_file(place.path(MANIFEST), manifest)
    except BaseException as error:
        with suppress(Exception):
            _remove(place, [MANIFEST, *dict.fromkeys([*new, *old])])
        if isinstance(error, StorageError) and old:
            raise StorageError(f"{error} The bundle that was to be replaced is gone: write it again.") from error
        raise


def _remove(place: Place, names: Iterable[str]) -> None:
    for name in names:
        with suppress(FileNotFoundError):
            place.files.rm_file(place.path(name))
