"""Compare two wheels: their files and contents, the compiled library among them.

python tests/support/source/same_wheel.py WHEEL WHEEL
"""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

LIBRARY = "_kernels.so"
TAGGED = (".dist-info/WHEEL", ".dist-info/RECORD")  # auditwheel changes the tag


def difference(one: Path, other: Path) -> list[str]:
    """The files that are in one of them alone, or have another content."""
    with zipfile.ZipFile(one) as first, zipfile.ZipFile(other) as second:
        names = {name for name in first.namelist() if not name.endswith("/")}
        others = {name for name in second.namelist() if not name.endswith("/")}
        found = [f"only in {one}: {name}" for name in sorted(names - others)]
        found += [f"only in {other}: {name}" for name in sorted(others - names)]
        for name in sorted(names & others):
            if not name.endswith(TAGGED) and first.read(name) != second.read(name):
                found.append(f"not the same: {name}")
        if not any(name.endswith(LIBRARY) for name in names):
            found.append(f"not in {one}: {LIBRARY}")
    sys.stdout.write(f"{len(names & others)} files are in both wheels\n")
    return found


if __name__ == "__main__":
    if different := difference(Path(sys.argv[1]), Path(sys.argv[2])):
        sys.exit("\n".join(different))
