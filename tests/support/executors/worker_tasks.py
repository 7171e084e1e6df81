"""Functions that the tests of executors run in workers; as a program, some of them on the Ray cluster at an address."""

from __future__ import annotations

import os
import resource
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from intaglio.errors import GraphError


def product(left: Any, right: Any) -> Any:
    return left @ right


def slow_first(number: int) -> int:
    """Earlier tasks end later."""
    time.sleep(max(0, 0.3 - 0.1 * number))
    return number


def refuse(number: int) -> None:
    raise GraphError(f"layer {number}: not supported.")


def singular(number: int) -> Any:
    return np.linalg.cholesky(-np.eye(2))


def die_until(folder: str, number: int, deaths: int, large: Any = None) -> int:
    """Kill this process `deaths` times, then return its argument."""
    assert large is None or (large == np.arange(len(large))).all()
    seen = len(list(Path(folder).glob(f"{number}-*")))
    if seen < deaths:
        (Path(folder) / f"{number}-{seen}").touch()
        os.kill(os.getpid(), 9)
    return number


def more_than_a_file_holds() -> Any:
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 12, resource.RLIM_INFINITY))
    return np.zeros(1 << 20)


def process_and_threads() -> tuple[int, int]:
    from intaglio.processes.threads import usable_threads

    return os.getpid(), usable_threads()


def run_on(address: str) -> None:
    from intaglio.executors.ray_cluster import RayCluster
    from intaglio.processes.threads import bounded

    right = np.random.default_rng(0).standard_normal((300, 300)).astype(np.float32)
    with RayCluster(address) as executor, bounded(1):
        np.testing.assert_array_equal(next(executor.map(product, [(right, executor.share(right))])), right @ right)
        try:
            next(executor.map(refuse, [(3,)]))
        except GraphError as error:
            assert str(error) == "layer 3: not supported."
            sys.stdout.write("equal\n")


if __name__ == "__main__":
    import worker_tasks  # under the name that workers import it by

    worker_tasks.run_on(sys.argv[1])
