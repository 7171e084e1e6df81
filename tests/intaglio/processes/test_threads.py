"""Work uses the given number of threads with one BLAS thread each, and does not depend on it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from threadpoolctl import threadpool_info

from intaglio.bundle.bundle import Bundle
from intaglio.errors import UsageError
from intaglio.graph_passes import compress
from intaglio.graph_passes.calibration.second_moments import second_moments
from intaglio.graph_passes.contract import Counts, PassInputs
from intaglio.graph_passes.weights.gptq_solver import inverse_factor
from intaglio.graph_passes.weights.rtn import Rtn
from intaglio.processes.threads import bounded, in_parallel, usable_threads
from intaglio.runtime.engines.onnxruntime.engine import OnnxRuntimeEngine
from intaglio.training.gradients.sensitivity import sensitivity
from intaglio.validation.roofline.roofline import roofline
from intaglio.validation.tuning.tune_decoding import tune_decoding

TEXT = "The quick brown fox jumps over the lazy dog; sphinx of black quartz, judge my vow.\n" * 12


def blas_threads() -> list[int]:
    return [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]


def test_thread_limit_holds_only_inside_the_context() -> None:
    before, blas = usable_threads(), blas_threads()
    assert before == len(os.sched_getaffinity(0)) and blas
    with bounded(3):
        assert usable_threads() == 3 and set(blas_threads()) == {1}
        with bounded(None):
            assert usable_threads() == 3
    assert usable_threads() == before and blas_threads() == blas


@pytest.mark.parametrize("threads", [-1, 0, 1025, 9_999_999_999])
def test_invalid_thread_count_is_refused(threads: int, tiny_bundle: Path, tiny_decoder: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(TEXT)
    (tmp_path / "lines.jsonl").write_text('{"prompt": "a"}')
    for work in (
        lambda: compress(tiny_bundle, tmp_path / "out", "canonical", threads=threads),
        lambda: sensitivity(tiny_decoder, tmp_path / "s", tmp_path / "text.txt", threads=threads),
        lambda: roofline(tiny_bundle, threads=threads),
        lambda: tune_decoding(tiny_decoder, tiny_decoder, tmp_path / "lines.jsonl", threads=threads),
        lambda: OnnxRuntimeEngine(Bundle.open(tiny_bundle), threads=threads),
    ):
        with pytest.raises(UsageError, match=rf"^--threads {threads}: expected 1 to 1024\.$"):
            work()  # type: ignore[no-untyped-call]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("threads", [1, 3])
def test_items_run_on_the_given_threads_in_order(threads: int) -> None:
    together = threading.Barrier(threads)
    with bounded(threads):
        assert in_parallel(lambda item: (together.wait(timeout=30), item)[1], range(6)) == list(range(6))


def test_engines_use_the_given_threads(tiny_bundle: Path) -> None:
    with bounded(3), OnnxRuntimeEngine(Bundle.open(tiny_bundle)) as engine:
        assert engine._session.get_session_options().intra_op_num_threads == 3


def test_passes_run_with_one_thread_in_blas(
    tiny_decoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    rewrite = Rtn._rewrite

    def watched(self: Rtn, model: ir.Model, inputs: PassInputs, counts: Counts) -> None:
        seen.extend([*blas_threads(), usable_threads()])
        rewrite(self, model, inputs, counts)

    monkeypatch.setattr(Rtn, "_rewrite", watched)
    compress(tiny_decoder, tmp_path / "out", "rtn", threads=5)
    assert set(seen[:-1]) == {1} and seen[-1] == 5


def tasks() -> int:
    return sum(1 for _ in Path("/proc/self/task").iterdir())


@pytest.mark.proof
@pytest.mark.parametrize(
    ("chosen", "policy"),
    [({}, "PASSIVE"), pytest.param({"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE", marks=pytest.mark.proof)],
)
def test_idle_torch_threads_sleep_by_default(chosen: dict[str, str], policy: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    done = subprocess.run(
        [sys.executable, "-c", "from intaglio.extras import load; load('torch')"],
        env={**environment, **chosen, "OMP_DISPLAY_ENV": "true"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert f"OMP_WAIT_POLICY = '{policy}'" in done.stderr  # settings of the OpenMP library, as it prints them


@contextmanager
def most_threads() -> Iterator[Callable[[], int]]:
    """A function that returns the maximum number of threads above that at its start."""
    ended, before = threading.Event(), tasks() + 1
    seen = [before]

    def watch() -> None:
        while not ended.is_set():
            seen.append(tasks())
            time.sleep(0.0005)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield lambda: max(seen) - before
    finally:
        ended.set()
        watcher.join()


@pytest.mark.proof
def test_recipe_respects_the_thread_limit_with_equal_results(
    make_decoder: Callable[..., tuple[Path, Path]], tmp_path: Path
) -> None:
    bundle = make_decoder("gpt2", n_embd=128, n_head=2)[1]
    (tmp_path / "text.txt").write_text(TEXT)
    (tmp_path / "r.yaml").write_text("passes: [lut: {unweighted: true, skip: ['*.0.*']}, gptq: {samples: 4}]")
    more = []
    # Libraries start permanent threads of their own when they are first used, which may be in any of the first runs.
    for number, threads in enumerate((1, 1, 4, 1)):
        with most_threads() as most:
            output = tmp_path / str(number)
            compress(bundle, output, tmp_path / "r.yaml", calibration=tmp_path / "text.txt", threads=threads)
            more.append(most())
    assert min(more[1], more[3]) == 0 and 3 <= more[2] <= 4
    assert (tmp_path / "1" / "model.onnx").read_bytes() == (tmp_path / "2" / "model.onnx").read_bytes()


def test_second_moments_do_not_depend_on_the_number_of_threads() -> None:
    random = np.random.default_rng(0)
    rows = [random.standard_normal((200, 600)).astype(np.float32) for _ in range(3)]
    made = []
    for threads in (1, 4):
        with bounded(threads):
            moments = second_moments(rows, 600)
            made.append((moments, inverse_factor(moments, np.arange(600), 0.01)[0]))
    whole = np.concatenate(rows).astype(np.float64)
    np.testing.assert_allclose(made[0][0], whole.T @ whole, atol=1e-3)
    np.testing.assert_array_equal(made[0][0], made[0][0].T)
    for one, four in zip(*made, strict=True):
        np.testing.assert_array_equal(one, four)
