"""Executors return results in order, survive the death of workers, and report errors as this process would."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import worker_tasks as tasks

from intaglio.display.verbosity import is_quiet
from intaglio.errors import GraphError, MissingExtraError, StorageError, UsageError, WorkerError
from intaglio.executors import worker
from intaglio.executors.executor import INLINE, Executor, InOrder
from intaglio.executors.opening import open_executor
from intaglio.executors.process_pool import ProcessPool
from intaglio.executors.worker import Environment, Failure, environment, run_task, unwrap
from intaglio.processes.threads import bounded


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPool]:
    with ProcessPool(2) as opened:
        yield opened


def test_results_come_in_the_order_of_the_tasks(pool: Executor) -> None:
    assert list(pool.map(tasks.slow_first, ((number,) for number in range(6)))) == list(range(6))


def test_workers_compute_the_bits_of_this_process_and_share_its_threads(pool: Executor) -> None:
    random = np.random.default_rng(0)
    matrices = [random.standard_normal((70, 70)).astype(np.float32) for _ in range(3)]
    right = random.standard_normal((70, 70)).astype(np.float32)
    shared = pool.share(right)
    found = list(pool.map(tasks.product, ((matrix, shared) for matrix in matrices), small=True))
    with bounded(1):
        expected = list(INLINE.map(tasks.product, ((matrix, right) for matrix in matrices), small=True))
    np.testing.assert_array_equal(found, expected)
    process, threads = next(pool.map(tasks.process_and_threads, [()]))
    assert process != os.getpid()
    assert threads == 1


def test_large_arguments_and_results_leave_no_file(pool: ProcessPool) -> None:
    left = np.random.default_rng(0).standard_normal((300, 300)).astype(np.float32)
    shared = pool.share(left)
    with bounded(1):
        expected = left @ left
    for got in pool.map(tasks.product, ((left, shared) for _ in range(5))):
        np.testing.assert_array_equal(got, expected)
        got[:] = 0  # the result belongs to the caller
    assert len(list(pool._folder.iterdir())) == 1
    del shared
    assert not list(pool._folder.iterdir())


def test_values_that_only_tasks_need_are_there_for_them(pool: ProcessPool) -> None:
    eye = np.eye(200, dtype=np.float32)
    found = pool.map(tasks.product, ((eye, pool.share(eye * number)) for number in range(6)))
    assert [each[0, 0] for each in found] == list(range(6))
    assert not list(pool._folder.iterdir())


def test_result_that_cannot_be_written_is_an_error() -> None:
    with ProcessPool(1) as alone, pytest.raises(StorageError, match=r"cannot write .*File too large"):
        list(alone.map(tasks.more_than_a_file_holds, [()]))


def test_workers_show_no_progress(pool: Executor) -> None:
    assert next(pool.map(is_quiet, [()]))


def test_errors_of_tasks_are_raised_unchanged(pool: Executor) -> None:
    with pytest.raises(GraphError, match=r"^layer 3: not supported\.$"):
        list(pool.map(tasks.refuse, [(3,)]))
    with pytest.raises(np.linalg.LinAlgError) as found:
        list(pool.map(tasks.singular, [(0,)]))
    assert "in singular" in "".join(found.value.__notes__)


def test_tasks_of_a_killed_process_run_again(pool: Executor, tmp_path: Path) -> None:
    large = np.arange(1 << 16)
    found = pool.map(tasks.die_until, ((str(tmp_path), number, int(number == 1), large) for number in range(5)))
    assert list(found) == list(range(5))
    assert [path.name for path in tmp_path.iterdir()] == ["1-0"]


def test_a_task_that_always_kills_its_process_is_an_error(pool: Executor, tmp_path: Path) -> None:
    with pytest.raises(WorkerError, match=r"processes:2: the process of a task \(die_until\) died 4 times"):
        list(pool.map(tasks.die_until, [(str(tmp_path), 0, 100)]))


def test_tasks_are_started_at_most_a_window_ahead() -> None:
    started: list[int] = []
    numbers = InOrder(((number,) for number in range(9)), lambda task: started.append(task[0]), lambda _: None, 4)
    assert started == [0, 1, 2, 3]
    next(numbers)
    assert started == [0, 1, 2, 3, 4]


def test_inline_tasks_run_when_their_result_is_requested() -> None:
    results = INLINE.map(tasks.refuse, iter([(1,)]))
    with pytest.raises(GraphError):
        next(results)


def test_a_worker_of_other_versions_or_processors_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = environment()
    monkeypatch.setattr(worker, "environment", lambda: Environment("0.0.1", *list(vars(expected).values())[1:]))
    result = run_task(expected, 1, tasks.product, np.eye(1), np.eye(1))
    assert isinstance(result, Failure)
    with pytest.raises(WorkerError, match=r"has intaglio 0\.0\.1, this process .*: their results would differ"):
        unwrap(result)


@pytest.mark.parametrize("name", ["", "threads", "processes:", "processes:0", "processes:x", "ray:", "ray://"])
def test_unknown_executors_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match="expected"):
        open_executor(name)


def test_ray_without_its_extra_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"intaglio\[ray\]"):
        open_executor("ray")
