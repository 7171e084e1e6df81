"""The cache of bundles that were fetched from an address."""

from __future__ import annotations

import os
from pathlib import Path

from intaglio.errors import UsageError
from intaglio.files.hashes import cache_directory
from intaglio.processes.temporary import SUFFIX

SETTING = "INTAGLIO_BUNDLE_CACHE"  # environment variable


def bundle_cache() -> Path:
    """`$INTAGLIO_BUNDLE_CACHE`, by default `bundles` in the cache directory. It may not exist.

    A fetched bundle is in <hash of its manifest>/<name>. Everything in it can be removed.
    """
    given = os.environ.get(SETTING)
    return Path(given).absolute() if given else cache_directory() / "bundles"


def is_fetched(path: Path) -> bool:
    """Whether the bundle at `path` was fetched from an address, and is not in a temporary folder of an upload."""
    absolute, cache = path.absolute(), bundle_cache()
    return absolute.is_relative_to(cache) and not absolute.relative_to(cache).parts[0].endswith(SUFFIX)


def refuse_fetched(path: Path, problem: str) -> None:
    """Raise `UsageError` for a bundle that was fetched: what is added to it would stay in the cache."""
    if is_fetched(path):
        raise UsageError(f"bundle {path.name}: was fetched from an address; {problem}")
