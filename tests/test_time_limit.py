"""The time limits that other tests rely on."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from time_limit import TooLong, time_limit

SWALLOWS = """
import asyncio, time
from event_loops import run
from time_limit import time_limit
with time_limit(0.2, every=0.1, grace=0.5):
    run(asyncio.sleep(0))  # has a limit of its own, and leaves the other one
    while True:
        try:
            time.sleep(60)
        except BaseException:
            pass
"""


def test_time_limit_ends_code_that_swallows_exceptions() -> None:
    swallowed = 0
    began = time.monotonic()
    with pytest.raises(TooLong, match=r"more than 0\.2 s"), time_limit(0.2, every=0.1):
        while True:
            try:
                time.sleep(60)
            except Exception:
                swallowed += 100
            except BaseException:
                swallowed += 1
                if swallowed == 3:
                    raise
    assert time.monotonic() - began < 10
    time.sleep(0.3)  # no timer is left that would interrupt later tests


def test_time_limit_kills_unstoppable_code_and_prints_stacks() -> None:
    support = Path(__file__).parent / "support"
    paths = [str(support / "source"), str(support / "serving"), str(Path(__file__).parents[1])]
    code = f"import sys; sys.path[:0] = {paths!r}\n{SWALLOWS}"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert found.returncode == 1
    assert "Timeout (0:00:00" in found.stderr and "most recent call first" in found.stderr
