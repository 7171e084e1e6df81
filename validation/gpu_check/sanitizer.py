"""NVIDIA's compute-sanitizer, under which a child process of `gpu-check` runs: it checks each access of a kernel."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from intaglio.processes.temporary import scratch_directory
from intaglio.validation.gpu_check.results import Failure

PROGRAM = "compute-sanitizer"
FOUND = 77  # the exit code if it found something
PREFIX = "========="  # of its lines
LINES = 4  # of its first finding: what, in which function, by which thread, and where
# Lines that say nothing about a finding, or contain paths of this machine.
LEFT_OUT = ("COMPUTE-SANITIZER", "ERROR SUMMARY", "Saved host backtrace", "Host Frame")


class Sanitizer(NamedTuple):
    """A run of the program: its command line, before that of the child, and the log that it writes."""

    command: tuple[str, ...]
    log: Path

    def judge(self, failures: list[Failure], code: int) -> list[Failure]:
        """`failures` and the finding, after the program ended with the exit code `code`.

        The finding replaces the error of the case that it ended.
        """
        text = self._first_lines()
        wrong, others = ([each for each in failures if (each.kind == "wrong bits") == same] for same in (True, False))
        if code == FOUND:
            case = others[0].case if others else ""
            return [*wrong, Failure("memory error", case, text or "the log is empty")]
        if text:
            others = [msgspec.structs.replace(each, message=f"{each.message}; {PROGRAM}: {text}") for each in others]
        return [*wrong, *others]

    def _first_lines(self) -> str:
        lines = []
        with suppress(OSError):
            lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        texts = [line.removeprefix(PREFIX).strip() for line in lines]
        told = [text for text in texts if text and not text.startswith(LEFT_OUT)]
        return "; ".join(told[:LINES])


def has_sanitizer() -> bool:
    """Whether the program is on the PATH."""
    return shutil.which(PROGRAM) is not None


@contextmanager
def memory_check() -> Iterator[Sanitizer]:
    """A run whose log is removed at the end of the block."""
    with scratch_directory("gpu-check") as directory:
        log = directory / "log"
        options = ("--tool", "memcheck", "--log-file", str(log), "--error-exitcode", str(FOUND))
        yield Sanitizer((PROGRAM, *options), log)
