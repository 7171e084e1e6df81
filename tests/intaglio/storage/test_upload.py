"""An upload is a whole bundle or none, and no reader ever gets a mixture of two."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from stored_bundles import contents, make_bundle

from intaglio.errors import BundleError, StorageError, UsageError
from intaglio.storage import upload as uploading
from intaglio.storage.address import Place, open_place
from intaglio.storage.fetch import fetch
from intaglio.storage.upload import destination, revision

memory = pytest.importorskip("fsspec.implementations.memory")
ADDRESS = "memory://models/tiny"
OLD, NEW = {"a": b"1", "b": b"22", "gone": b"0"}, {"a": b"1", "b": b"333"}
REFUSED = "a wire broke"


@pytest.fixture(autouse=True)
def empty() -> Iterator[None]:
    """No file is in fsspec's memory before and after a test."""
    memory.MemoryFileSystem.store.clear()
    yield
    memory.MemoryFileSystem.store.clear()


def stored() -> set[str]:
    """The paths of all files in fsspec's memory."""
    return set(memory.MemoryFileSystem.store)


def write(address: str = ADDRESS, force: bool = False, **files: bytes) -> dict[str, bytes]:
    """Write a bundle to `address`; return its files."""
    with destination(address, force) as path:
        return contents(make_bundle(path, **files))


@pytest.mark.parametrize("scheme", ["memory", "file"])
def test_round_trip_has_the_same_bytes(scheme: str, tmp_path: Path, cache: Path) -> None:
    address = f"{scheme}://{tmp_path}/models/tiny"
    written = write(address, **OLD)
    assert contents(fetch(address)) == written
    assert not list(cache.glob("upload-*"))
    if scheme == "file":
        assert contents(tmp_path / "models" / "tiny") == written


def test_forced_upload_replaces_a_bundle_and_removes_its_other_files() -> None:
    write(**OLD)
    written = write(force=True, **NEW)
    assert contents(fetch(ADDRESS)) == written
    assert stored() == {f"/models/tiny/{name}" for name in written}


def test_forced_upload_repairs_a_damaged_file() -> None:
    written = write(**OLD)
    memory.MemoryFileSystem().pipe_file("/models/tiny/parts/a.bin", b"X")
    with pytest.raises(BundleError, match=r"Write the bundle to this address again, with --force"):
        fetch(ADDRESS)
    assert write(force=True, **OLD) == written == contents(fetch(ADDRESS))


def test_place_with_a_bundle_is_refused_before_the_work() -> None:
    before = write(**OLD)
    with pytest.raises(UsageError, match=r"holds a bundle\. Add --force to replace it"), destination(ADDRESS):
        raise AssertionError("the work begins")
    assert contents(fetch(ADDRESS)) == before


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("memory://models", r"holds 'tiny' and no bundle\.json, and only bundles are replaced"),
        (f"{ADDRESS}/parts/deep", "is inside another bundle"),
    ],
)
def test_places_of_other_files_are_refused(address: str, problem: str) -> None:
    write(**OLD)
    with pytest.raises(UsageError, match=problem), destination(address, force=True):
        raise AssertionError("the work begins")


def test_bundle_that_appears_during_the_upload_is_kept() -> None:
    with pytest.raises(UsageError, match="holds a bundle"), destination(ADDRESS) as path:
        make_bundle(path, **NEW)
        other = write(**OLD)
    assert contents(fetch(ADDRESS)) == other and len(stored()) == len(other)


def test_failed_work_uploads_nothing() -> None:
    with pytest.raises(RuntimeError), destination(ADDRESS) as path:
        make_bundle(path, **NEW)
        raise RuntimeError
    assert not stored()


def failing(method: str, at: int, error: BaseException) -> Callable[..., Any]:
    """The method of the file system, which fails the `at`-th time."""
    original, calls = getattr(memory.MemoryFileSystem, method), [0]

    def call(*given: Any, **named: Any) -> Any:
        calls[0] += 1
        if calls[0] == at:
            raise error
        return original(*given, **named)

    return call


STEPS = [("put_file", 2), ("cp_file", 1), ("cp_file", 2), ("pipe_file", 1)]


@pytest.mark.parametrize(("method", "at"), STEPS)
@pytest.mark.parametrize("error", [OSError(5, REFUSED), KeyboardInterrupt()], ids=["error", "interrupt"])
def test_interrupted_upload_leaves_nothing(
    method: str, at: int, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory.MemoryFileSystem, method, failing(method, at, error))
    with pytest.raises(KeyboardInterrupt if isinstance(error, KeyboardInterrupt) else StorageError) as caught:
        write(**OLD)
    assert REFUSED not in str(caught.value)  # a text of a library may name the server
    assert not stored()


def test_interrupted_transfer_keeps_the_bundle_that_was_to_be_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    before = write(**OLD)
    monkeypatch.setattr(memory.MemoryFileSystem, "put_file", failing("put_file", 1, OSError(5, REFUSED)))
    with pytest.raises(StorageError):
        write(force=True, **NEW)
    assert contents(fetch(ADDRESS)) == before
    assert len(stored()) == len(before)


@pytest.mark.parametrize(("method", "at"), STEPS[1:2] + STEPS[3:])
def test_interrupted_replacement_leaves_no_mixture(method: str, at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    write(**OLD)
    monkeypatch.setattr(memory.MemoryFileSystem, method, failing(method, at, OSError(5, REFUSED)))
    with pytest.raises(StorageError, match="The bundle that was to be replaced is gone: write it again"):
        write(force=True, **NEW)
    assert not stored()


@pytest.mark.parametrize("method", ["put_file", "cp_file", "rm_file", "pipe_file"])
def test_reader_during_a_replacement_gets_one_of_the_two_or_an_error(
    method: str, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    old = write(**OLD)
    original = getattr(memory.MemoryFileSystem, method)
    seen: list[dict[str, bytes] | None] = []

    def read_around(*given: Any, **named: Any) -> None:
        for call in (None, original):
            if call is not None:
                call(*given, **named)
            try:
                seen.append(contents(fetch(ADDRESS)))
            except BundleError:
                seen.append(None)

    monkeypatch.setattr(memory.MemoryFileSystem, method, read_around)
    new = write(force=True, **NEW)
    assert seen and all(each in (None, old, new) for each in seen)
    assert contents(fetch(ADDRESS)) == new


def test_reader_that_has_the_old_manifest_never_takes_new_files(monkeypatch: pytest.MonkeyPatch) -> None:
    write(**OLD)
    get_file = memory.MemoryFileSystem.get_file

    def replaced(self: Any, source: str, *others: Any, **options: Any) -> None:
        if stored() >= {"/models/tiny/parts/gone.bin"}:
            write(force=True, **NEW)
        get_file(self, source, *others, **options)

    monkeypatch.setattr(memory.MemoryFileSystem, "get_file", replaced)
    with pytest.raises(BundleError, match="was replaced while it was fetched"):
        fetch(ADDRESS)


def test_remains_of_a_killed_upload_are_no_obstacle() -> None:
    memory.MemoryFileSystem().pipe_file(f"/models/tiny/{uploading.STAGE}0123/a.bin", b"1")
    written = write(**OLD)
    assert contents(fetch(ADDRESS)) == written


def test_revision_uploads_only_what_is_added(monkeypatch: pytest.MonkeyPatch) -> None:
    written = write(**OLD)
    put: list[str] = []
    put_file = memory.MemoryFileSystem.put_file

    def counting(self: Any, source: str, target: str, **options: Any) -> None:
        put.append(Path(target).name)
        put_file(self, source, target, **options)

    monkeypatch.setattr(memory.MemoryFileSystem, "put_file", counting)
    with revision(ADDRESS) as path:
        make_bundle(path, force=True, **OLD, more=b"4")
    assert put == ["more.bin"]
    found = contents(fetch(ADDRESS))
    assert found.keys() - written.keys() == {"parts/more.bin"} and written.keys() <= found.keys()


def test_revision_of_a_bundle_that_was_replaced_meanwhile_is_refused() -> None:
    write(**OLD)
    with pytest.raises(StorageError, match="was replaced meanwhile, and left as it is"), revision(ADDRESS) as path:
        other = write(force=True, **NEW)
        make_bundle(path, force=True, **OLD, more=b"4")
    assert contents(fetch(ADDRESS)) == other and len(stored()) == len(other)


def test_old_manifest_removes_only_files_of_its_folder() -> None:
    write(**OLD)
    files = memory.MemoryFileSystem()
    files.pipe_file("/models/other.bin", b"1")
    manifest = files.cat_file("/models/tiny/bundle.json")
    files.pipe_file("/models/tiny/bundle.json", manifest.replace(b"parts/gone.bin", b"../other.bin"))
    write(force=True, **NEW)
    assert "/models/other.bin" in stored()


def test_place_is_asked_again_before_it_is_published(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[Place] = []
    monkeypatch.setattr(uploading, "check_place", lambda place, force: checked.append(place))
    write(**OLD)
    assert [place.root for place in checked] == [open_place(ADDRESS).root] * 2
