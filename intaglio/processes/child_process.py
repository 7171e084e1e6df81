"""The child's side of `children`: run a module of this package in a process that always ends when its parent ends.

    python -P -m intaglio.processes.child_process PARENT MODULE [ARGUMENT]...
    python -P -m intaglio.processes.child_process under PARENT MODULE [ARGUMENT]...

is `python -P -m MODULE [ARGUMENT]...`, but the kernel kills it once the process PARENT has ended. With `under` there
are other processes between the two, such as a debugger, and a thread waits for PARENT's end.
"""

from __future__ import annotations

import ctypes
import os
import resource
import runpy
import select
import signal
import sys
import threading

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def end_with(parent: int) -> None:
    """Let the kernel kill this process when its parent process `parent` ends (Linux only)."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it ended before
            os.kill(os.getpid(), signal.SIGKILL)


def end_with_ancestor(ancestor: int) -> None:
    """Let a thread kill this process when the process `ancestor` ends (Linux only)."""
    if not hasattr(os, "pidfd_open"):
        return
    try:
        running = os.pidfd_open(ancestor)  # readable once it has ended
    except ProcessLookupError:  # it ended before
        os.kill(os.getpid(), signal.SIGKILL)
    except OSError:  # a kernel before 5.3
        return

    def wait() -> None:
        select.select([running], [], [])
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait, name="intaglio-ancestor", daemon=True).start()


def lower_limit(what: int, most: int) -> None:
    """Lower the limit `what` (resource.RLIMIT_...) of this process to `most`, unless it is lower already."""
    hard = resource.getrlimit(what)[1]
    resource.setrlimit(what, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


if __name__ == "__main__":
    if sys.argv[1] == "under":
        del sys.argv[1]
        end_with_ancestor(int(sys.argv[1]))
    else:
        end_with(int(sys.argv[1]))
    name = sys.argv[2]
    del sys.argv[:3]
    sys.argv.insert(0, name)
    runpy.run_module(name, run_name="__main__", alter_sys=True)
