"""The names of models: those given with their bundles, or their last folders."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from intaglio.errors import UsageError
from intaglio.storage.address import check_local, is_address
from intaglio.storage.fetch import local_bundle


def named(bundles: Sequence[str | Path], what: str = "bundle") -> dict[str, Path]:
    """The bundles by the names of their models: NAME=PATH, or a path, whose last folder is the name.

    A path may be an address, whose bundle is fetched to the local cache.
    `what` they are, for messages. Raises `UsageError` for two of the same name.
    """
    found: dict[str, Path] = {}
    for bundle in bundles:
        name, equals, path = str(bundle).partition("=")
        if not is_address(path) and is_address(str(bundle)):
            name, path = str(bundle).rstrip("/").rpartition("/")[2], str(bundle)
        elif bundle and (not equals or Path(bundle).exists()):
            name, path = Path(bundle).resolve().name, str(bundle)
        if not name or not path:
            raise UsageError(f"{what} {str(bundle)!r}: its {'path' if name else 'name'} is empty. Write NAME=PATH.")
        if name in found:
            raise UsageError(f"two {what}s are named {name!r}: {found[name]} and {path}. Write NAME=PATH for one.")
        if what != "bundle":
            check_local(path, f"{what} {path}")
        found[name] = local_bundle(path)
    if not found:
        raise UsageError(f"no {what} is given, expected at least one.")
    return found
