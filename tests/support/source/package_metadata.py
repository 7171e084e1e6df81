"""Metadata of packages that are not there, for `intaglio doctor`."""

from __future__ import annotations

from pathlib import Path


def fake(folder: Path, name: str, version: str, *requires: str, extras: tuple[str, ...] = ()) -> None:
    """Metadata of a package in `folder`, as pip writes it."""
    lines = ["Metadata-Version: 2.4", f"Name: {name}", *([f"Version: {version}"] if version else [])]
    lines += [*(f"Provides-Extra: {each}" for each in extras), *(f"Requires-Dist: {each}" for each in requires)]
    info = folder / f"{name.replace('-', '_')}-{version or 0}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("\n".join(lines) + "\n")
