"""Small bundles for tests of addresses: their graphs are not opened there."""

from __future__ import annotations

from pathlib import Path

from intaglio.bundle.bundle import Manifest, Source, create
from intaglio.processes.temporary import SUFFIX


def make_bundle(path: Path, force: bool = False, **contents: bytes) -> Path:
    """A bundle with files of these contents, by the names of the arguments: `weights` becomes weights.bin."""
    with create(path, force) as draft:
        draft.manifest = Manifest(1, "a test", Source("onnx", "nowhere"), "", "", "", "float32", [], [])
        for name, content in contents.items():
            (draft.path / "parts").mkdir(exist_ok=True)
            (draft.path / "parts" / f"{name}.bin").write_bytes(content)
    return path


def contents(folder: Path) -> dict[str, bytes]:
    """The files of a folder by relative path, without those that another process is writing."""
    names = [str(path.relative_to(folder)) for path in folder.rglob("*")]
    return {name: (folder / name).read_bytes() for name in names if SUFFIX not in name and (folder / name).is_file()}
