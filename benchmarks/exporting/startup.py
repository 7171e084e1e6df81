"""How long do `import intaglio` and `intaglio --help` take, against Python's own start?

    python -m benchmarks.exporting.startup

Each is the median of eleven runs in fresh processes, taking turns with `python -c pass`.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

RUNS = 11
PROGRAM = str(Path(sys.executable).parent / "intaglio")
COMMANDS = {
    "python -c pass": ([sys.executable, "-c", "pass"], None),
    "import intaglio": ([sys.executable, "-c", "import intaglio"], 0.3),
    "intaglio --help": ([PROGRAM, "--help"], 0.5),
    "intaglio run --help": ([PROGRAM, "run", "--help"], 0.5),
}


def main() -> None:
    """Measure and print."""
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(RUNS):
        for name, (command, _limit) in COMMANDS.items():
            start = time.perf_counter()
            subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
            times[name].append(time.perf_counter() - start)
    base = statistics.median(times["python -c pass"])
    for name, (_, limit) in COMMANDS.items():
        median = statistics.median(times[name])
        bound = f"   (at most {limit} s)" if limit else ""
        print(f"{name:20} {median:.3f} s   {median / base:5.2f} x python's start{bound}")


if __name__ == "__main__":
    main()
