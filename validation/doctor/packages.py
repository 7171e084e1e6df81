"""The installed packages, and where they disagree with what Intaglio and they themselves require.

Only their metadata is read: no package is imported.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
from collections.abc import Iterator
from typing import NamedTuple

import msgspec
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from intaglio.extras import PURPOSE
from intaglio.version import __version__

NAME = "intaglio"
UNKNOWN = "an unknown version"  # of a package with damaged metadata
# Pairs of packages that write the same files: the one installed last counts, and removing either breaks both.
SAME_FILES = (("onnxruntime", "onnxruntime-gpu"),)


class Package(msgspec.Struct, frozen=True):
    """A package that Intaglio requires, by itself or by an extra, and that is installed."""

    name: str
    version: str
    required: str  # such as ">=1.23"; empty if any version will do


class Extra(msgspec.Struct, frozen=True):
    """An extra, and what it still lacks."""

    name: str
    purpose: str
    packages: list[str]
    missing: list[str]  # empty: the extra is installed, in whichever versions


class Installed(msgspec.Struct, frozen=True):
    """What is installed. `problems` are lines: what, got, expected, fix."""

    packages: list[Package]
    extras: list[Extra]
    problems: list[str]


class Metadata(NamedTuple):
    """What a package says of itself."""

    name: str
    version: str
    extras: list[str]
    requirements: list[Requirement]


@functools.cache
def metadata(name: str) -> Metadata | None:
    """The metadata of an installed package, read once; None if it is not installed."""
    try:
        found = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return None
    fields = found.metadata
    requirements = []
    for line in found.requires or ():
        with contextlib.suppress(InvalidRequirement):  # pip would not have installed it
            requirements.append(Requirement(line))
    return Metadata(name, fields["Version"] or UNKNOWN, fields.get_all("Provides-Extra") or [], requirements)


def installed() -> Installed:
    """Compare the environment with the requirements of Intaglio, and of every package that these bring."""
    metadata.cache_clear()
    ours = metadata(NAME)
    if ours is None:
        line = f"{NAME} is not installed as a package, so its requirements are unknown. Install it with: pip install ."
        return Installed([], [], [line])
    problems = []
    if ours.version != __version__:
        problems.append(
            f"{NAME} {__version__} runs, and {ours.version} is installed: two copies are on the path. Remove one."
        )
    packages: dict[str, Package] = {}
    extras = []
    for extra in ("", *ours.extras):
        wanted = list(requirements(ours, {extra}))
        missing = sorted({each.name for each in wanted if metadata(each.name) is None})
        for each in wanted:
            if (found := metadata(each.name)) is not None:
                packages.setdefault(each.name, Package(each.name, found.version, str(each.specifier)))
        if extra:
            extras.append(Extra(extra, PURPOSE.get(extra, ""), sorted({each.name for each in wanted}), missing))
    problems += _disagreements(ours, {each.name for each in extras if not each.missing})
    for one, other in SAME_FILES:
        if metadata(one) and metadata(other):
            problems.append(
                f"{one} and {other} are both installed, and write the same files. "
                f"Run: pip uninstall {one} {other}, then install one of them"
            )
    return Installed(sorted(packages.values(), key=lambda each: each.name.lower()), extras, problems)


def requirements(package: Metadata, extras: set[str]) -> Iterator[Requirement]:
    """What a package requires here for `extras` and those that they name; "" stands for the package alone."""
    todo, seen = list(extras), set(extras)
    while todo:
        extra = todo.pop()
        for each in package.requirements:
            if extra and (each.marker is None or each.marker.evaluate({"extra": ""})):
                continue  # not for an extra
            if each.marker is not None and not each.marker.evaluate({"extra": extra}):
                continue
            if canonicalize_name(each.name) == canonicalize_name(package.name):
                todo += each.extras - seen
                seen |= each.extras
            else:
                yield each


def _disagreements(ours: Metadata, extras: set[str]) -> list[str]:
    """Walk from Intaglio with `extras` through all that is required: missing packages, and versions that do not fit.

    Packages of an extra that is not installed may serve another program, in a version that Intaglio would not take.
    """
    problems: dict[str, None] = {}
    todo = [(ours, frozenset(extras))]
    seen = {(ours.name, frozenset(extras))}
    while todo:
        package, asked = todo.pop()
        for each in requirements(package, {"", *asked}):
            found = metadata(each.name)
            needs = f"{package.name} {package.version} requires {each.name}{each.specifier}"
            install = f"Run: pip install '{each.name}{each.specifier}'"
            if found is None:
                problems[f"{needs}, which is not installed. {install}"] = None
            elif found.version == UNKNOWN or not each.specifier.contains(found.version, prereleases=True):
                problems[f"{needs}, and {found.version} is installed. {install}"] = None
            elif (then := (canonicalize_name(each.name), frozenset(each.extras))) not in seen:
                seen.add(then)
                todo.append((found, frozenset(each.extras)))
    return list(problems)
