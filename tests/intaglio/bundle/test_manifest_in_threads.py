"""Threads may read manifests at the same time, the first ones of a process, too."""

import subprocess
import sys
from pathlib import Path

PROCESSES = 6  # each reads manifests for the first time once
PROGRAM = """
import sys, threading
from pathlib import Path
from intaglio.bundle.manifest_reading import read_manifest
sys.setswitchinterval(1e-7)
start, found = threading.Barrier(4), []
def read():
    start.wait()
    found.append(read_manifest(Path(sys.argv[1])))
threads = [threading.Thread(target=read) for _ in range(4)]
for each in threads:
    each.start()
for each in threads:
    each.join()
assert len(found) == 4 and all(each == found[0] for each in found)
"""


def test_first_manifests_are_read_by_threads_at_once(tiny_decoder: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tiny_decoder)]
    running = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(PROCESSES)]
    ended = [(each.communicate()[1], each.returncode) for each in running]
    assert ended == [("", 0)] * PROCESSES
