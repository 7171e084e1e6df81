"""Compile a grammar once in a separate process, where the kernel limits time, memory and stack.

A grammar can come from a client of a server, and the library's limits leave gaps: rules that refer to each other in a
chain of thousands overflow the stack, which ends the process, and terminals that contain each other twice take time and
memory that double with each of them. What compiles here within the limits compiles in the main process, too.
"""

from __future__ import annotations

import resource
import subprocess
import sys
from functools import lru_cache

from intaglio.child_process import command
from intaglio.errors import UsageError

MAX_SECONDS = 5  # of processor time, 0.1 of which start the process
MAX_BYTES = 1 << 30  # of address space
MAX_STACK = 1 << 20  # bytes; a thread of the main process has at least 2 MiB


@lru_cache(maxsize=64)
def check_grammar(text: str, kind: str) -> None:
    """Raise `UsageError` if llguidance cannot compile the grammar `text` within the limits; `kind` names it.

    It takes 0.1 s, and nothing for one of the last grammars. Errors of the grammar itself are not reported here.
    """
    child = subprocess.run(command(__name__), input=text.encode(), capture_output=True, check=False)
    if child.returncode != 0:
        raise UsageError(
            f"the {kind} takes more than {MAX_SECONDS} s, {MAX_BYTES >> 30} GiB or {MAX_STACK >> 20} MiB of stack to "
            "compile. Simplify it: fewer rules that refer to each other."
        )


def _limit(what: int, most: int) -> None:
    """Lower a limit, unless it is lower already."""
    hard = resource.getrlimit(what)[1]
    resource.setrlimit(what, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def _check() -> None:
    from llguidance import LLMatcher

    text = sys.stdin.buffer.read().decode()
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_AS, MAX_BYTES)
    _limit(resource.RLIMIT_CPU, MAX_SECONDS)
    _limit(resource.RLIMIT_STACK, MAX_STACK)
    LLMatcher.validate_grammar(text)


if __name__ == "__main__":
    _check()
