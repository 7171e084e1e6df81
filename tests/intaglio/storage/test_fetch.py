"""A fetched bundle is whole and as its manifest says, and nothing is fetched twice."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from stored_bundles import contents, make_bundle

from intaglio.bundle.bundle import Bundle
from intaglio.errors import BundleError, UsageError
from intaglio.storage import fetch as fetching
from intaglio.storage.cache import bundle_cache, is_fetched, refuse_fetched
from intaglio.storage.fetch import fetch

pytest.importorskip("fsspec")
Downloads = list[str]


@pytest.fixture
def downloads(monkeypatch: pytest.MonkeyPatch) -> Downloads:
    """The names of the files that were downloaded."""
    names: Downloads = []
    download = fetching._download

    def counting(place: object, name: str, *others: object) -> None:
        names.append(name)
        download(place, name, *others)  # type: ignore[arg-type]

    monkeypatch.setattr(fetching, "_download", counting)
    return names


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    (tmp_path / "store").mkdir()
    return make_bundle(tmp_path / "store" / "tiny", a=b"1", b=b"22")


def test_fetched_bundle_has_the_same_bytes_and_name(stored: Path) -> None:
    fetched = fetch(f"file://{stored}/")
    assert fetched.name == "tiny" and fetched != stored and is_fetched(fetched) and not is_fetched(stored)
    assert contents(fetched) == contents(stored)


def test_second_read_fetches_nothing(stored: Path, downloads: Downloads) -> None:
    first = fetch(f"file://{stored}")
    assert sorted(downloads) == ["parts/a.bin", "parts/b.bin"]
    downloads.clear()
    assert fetch(f"file://{stored}") == first and not downloads


def test_changed_bundle_fetches_only_changed_files(stored: Path, downloads: Downloads) -> None:
    first = fetch(f"file://{stored}")
    downloads.clear()
    make_bundle(stored, force=True, a=b"1", b=b"333")
    second = fetch(f"file://{stored}")
    assert downloads == ["parts/b.bin"] and second != first
    assert contents(second) == contents(stored) and contents(first)["parts/b.bin"] == b"22"


def test_removed_and_damaged_cached_files_are_fetched_again(stored: Path, downloads: Downloads) -> None:
    fetched = fetch(f"file://{stored}")
    (fetched / "parts" / "a.bin").unlink()
    (fetched / "parts" / "b.bin").write_bytes(b"")
    downloads.clear()
    assert contents(fetch(f"file://{stored}")) == contents(stored)
    assert downloads == ["parts/a.bin", "parts/b.bin"]


def test_damaged_cached_file_is_not_copied(stored: Path) -> None:
    (fetch(f"file://{stored}") / "parts" / "a.bin").write_bytes(b"X")
    make_bundle(stored, force=True, a=b"1", b=b"333")
    assert contents(fetch(f"file://{stored}")) == contents(stored)


def test_opening_a_changed_cached_file_says_to_remove_it(tiny_bundle: Path) -> None:
    fetched = fetch(f"file://{tiny_bundle}")
    file = fetched / "tokenizer.json"
    file.write_bytes(bytes(reversed(file.read_bytes())))
    with pytest.raises(BundleError, match=r"remove .*tiny, it is fetched again\.$"):
        Bundle.open(f"file://{tiny_bundle}")


def damage(stored: Path) -> None:
    (stored / "parts" / "b.bin").write_bytes(b"XX")


def shorten(stored: Path) -> None:
    (stored / "parts" / "b.bin").write_bytes(b"")


def remove(stored: Path) -> None:
    (stored / "parts" / "b.bin").unlink()


@pytest.mark.parametrize(
    ("change", "problem"), [(damage, "SHA-256 ecc76"), (shorten, "0 bytes, expected 2"), (remove, "missing")]
)
def test_damaged_remote_file_is_one_line_and_no_bundle(
    stored: Path, change: Callable[[Path], None], problem: str
) -> None:
    change(stored)
    with pytest.raises(BundleError, match=rf"^file://.*/parts/b\.bin: {problem}.*with --force\.$"):
        fetch(f"file://{stored}")
    assert not list(bundle_cache().rglob("bundle.json"))
    assert not list(bundle_cache().rglob("b.bin"))


def test_bundle_replaced_during_the_fetch_says_so(stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part = fetching.part

    def replaced(*given: object) -> object:
        make_bundle(stored, force=True, a=b"4", b=b"55")
        return part(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(fetching, "part", replaced)
    with pytest.raises(BundleError, match=r"was replaced while it was fetched\. Run the command again"):
        fetch(f"file://{stored}")


def test_place_without_a_manifest_is_no_bundle(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(BundleError, match=r"no bundle\.json there"):
            fetch(f"file://{place}")


def test_untrusted_manifest_writes_only_into_its_folder(stored: Path) -> None:
    manifest = stored / "bundle.json"
    manifest.write_text(manifest.read_text().replace("parts/a.bin", "../a.bin"))
    with pytest.raises(BundleError, match="expected one that stays inside"):
        fetch(f"file://{stored}")
    assert not bundle_cache().exists()


def test_threads_that_fetch_at_once_get_the_same_bundle(stored: Path) -> None:
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(fetch(f"file://{stored}"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [contents(each) for each in found] == [contents(stored)] * 4


def test_processes_that_fetch_at_once_get_the_same_bundle(tmp_path: Path) -> None:
    stored = make_bundle(tmp_path / "large", a=bytes(8 << 20), b=b"22")
    code = "import sys; from intaglio.storage.fetch import fetch; print(fetch(sys.argv[1]))"
    command = [sys.executable, "-c", code, f"file://{stored}"]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    places = {each.communicate()[0].strip() for each in running}
    assert [each.returncode for each in running] == [0, 0] and len(places) == 1
    assert contents(Path(places.pop())) == contents(stored)


def test_additions_to_a_fetched_bundle_are_refused(stored: Path) -> None:
    refuse_fetched(stored, "no.")
    with pytest.raises(UsageError, match="bundle tiny: was fetched from an address; no"):
        refuse_fetched(fetch(f"file://{stored}"), "no.")


def test_cache_is_set_by_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("INTAGLIO_BUNDLE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert bundle_cache() == tmp_path / "intaglio" / "bundles"
    monkeypatch.setenv("INTAGLIO_BUNDLE_CACHE", "here")
    assert bundle_cache() == Path.cwd() / "here"
