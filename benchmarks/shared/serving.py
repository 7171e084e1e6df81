"""A server in a process of its own, for the benchmarks of `intaglio serve`."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple

from intaglio.display.progress import step
from intaglio.exporters import export

MODELS = Path(__file__).parents[2] / "examples" / "language_models"
LISTENING = re.compile(r"listening on (http://\S+)")
OPENING = 120  # seconds that opening the models may take


class Served(NamedTuple):
    """A running server."""

    url: str
    pid: int


@contextmanager
def serving(*arguments: object) -> Iterator[Served]:
    """Run `intaglio serve` with `arguments` on a free port until the block ends."""
    with tempfile.TemporaryFile("w+") as log:
        command = [sys.executable, "-m", "intaglio", "serve", *map(str, arguments), "--port", "0"]
        server = subprocess.Popen(command, stderr=log, text=True)
        try:
            yield Served(_listening(server, log), server.pid)
        finally:
            server.terminate()
            server.wait()


def _listening(server: subprocess.Popen[str], log: IO[str]) -> str:
    """Wait until the server listens, and return its URL."""
    ends = time.monotonic() + OPENING
    while server.poll() is None and time.monotonic() < ends:
        log.seek(0)
        if found := LISTENING.search(log.read()):
            return found[1]
        time.sleep(0.05)
    log.seek(0)
    raise RuntimeError(f"the server does not listen: {log.read()[-500:]}")


@contextmanager
def exported(bundle: Path | None, source: Path | str = MODELS / "large") -> Iterator[Path]:
    """`bundle`, or the export of `source` in a temporary folder."""
    if bundle is not None:
        yield bundle
        return
    with tempfile.TemporaryDirectory() as folder:
        with step(f"exporting {Path(source).name}"):
            export(str(source), Path(folder) / "model", check=False)
        yield Path(folder) / "model"


def resident_bytes(pid: int) -> int:
    """The resident memory of a process."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


def verdict(name: str, value: float, bound: float, at_least: bool = True) -> str:
    """A line that compares a measurement with its bound."""
    held = value >= bound if at_least else value <= bound
    return f"{name}: {value:.3g}, {'at least' if at_least else 'at most'} {bound:g}: {'yes' if held else 'NO'}"
