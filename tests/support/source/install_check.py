"""Resolve every `pip install` line of README.md and docs/ against a built wheel, without installing anything.

    python tests/support/source/install_check.py WHEEL

Each line is given to pip with --dry-run, the wheel in place of `intaglio`, and nothing counting as installed. Prints
the lines with their times, and fails with those that do not resolve.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from documentation import EXTRAS, ROOT, installations

OURS = "intaglio"
PLACEHOLDER = "EXTRA"  # in a line that describes others
# The package tensorrt fetches its libraries from an index of NVIDIA's when pip asks for its metadata. Where that one
# cannot be reached, a line that needs it is left out.
ELSEWHERE = ("tensorrt", "nvidia")  # in pip's message
UNKNOWN = "does not provide the extra"  # of which pip only warns
AT_A_TIME = 2  # pip computes more than it waits


class Resolved(NamedTuple):
    """What pip says of a line."""

    line: str
    seconds: float
    error: str  # "" if it resolves
    left_out: bool


def commands(wheel: Path) -> Iterator[tuple[str, list[str]]]:
    """Each line with its page, and pip's arguments for it; lines of equal arguments once."""
    known: set[tuple[str, ...]] = set()
    for page, line in installations():
        if not page.endswith(".md") or PLACEHOLDER in line:
            continue
        words = [_requirement(word, wheel) for word in shlex.split(line, comments=True)[2:]]
        if tuple(words) not in known:
            known.add(tuple(words))
            yield f"{page}: {line}", words


def _requirement(word: str, wheel: Path) -> str:
    """The word of a line, the wheel with its extras where it names Intaglio."""
    found = EXTRAS.search(word)
    return f"{wheel}[{found[1]}]" if found else str(wheel) if word == OURS else word


def resolve(named: tuple[str, list[str]]) -> Resolved:
    """Let pip resolve a line."""
    line, words = named
    pip = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet", *words]
    began = time.perf_counter()
    done = subprocess.run(pip, cwd=ROOT, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - began
    failed = done.returncode != 0 or UNKNOWN in done.stderr
    left_out = all(word in done.stderr.lower() for word in ELSEWHERE)
    return Resolved(line, seconds, done.stderr if failed else "", left_out)


def main() -> None:
    """Check the lines with the wheel that the command line names."""
    parser = argparse.ArgumentParser(description="Resolve the lines of the documentation that install.")
    parser.add_argument("wheel", type=Path)
    wheel = parser.parse_args().wheel.resolve()
    failed = []
    with ThreadPoolExecutor(AT_A_TIME) as threads:
        for found in threads.map(resolve, commands(wheel)):
            result = "resolves" if not found.error else "needs NVIDIA's index" if found.left_out else "DOES NOT RESOLVE"
            sys.stdout.write(f"{found.seconds:6.1f} s  {result}  {found.line}\n")
            if found.error and not found.left_out:
                failed.append(f"{found.line}\n{found.error}")
    if failed:
        sys.exit("\n".join(failed))


if __name__ == "__main__":
    main()
