"""How long would a cluster take to compress a model of 70 billion weights, and what would hold it back?

    python -m benchmarks.cluster.simulation [--machines 64] [--workers 2] [--link 10] [--samples 128] [--batch 8]
        [--json]

`gptq` compresses three LLaMAs of random weights in this process, one thread, and every task is recorded: its seconds,
and the bytes of its arguments and results. Costs are fitted to these records: seconds for each operation, byte and
call. Then stage after stage is simulated: the program that was called sends the arguments of a task over its link when
a worker may take it, and adds the results in their order; what all workers need passes the link once for each machine,
although Ray's machines also pass it on to each other. The program that was called computes with one thread.

The simulation is checked: its bytes and tasks against the recorded ones, its seconds against runs with one and two
processes of each of the three models. Then it is asked for 70 billion (LLaMA 2 and 3: 80 layers of width 8192).
"""

from __future__ import annotations

import heapq
import math
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from pydoc_data.topics import topics
from unittest.mock import patch

import click
import msgspec
import numpy as np
import numpy.typing as npt

from benchmarks.cluster.costs import Costs, costs_of, fit
from benchmarks.cluster.plan import Text, Work, plan
from benchmarks.cluster.recording import Recorder, Stage
from benchmarks.shared import random_llama
from intaglio.bundle.bundle import Bundle
from intaglio.bundle.model_file import load
from intaglio.display.progress import step
from intaglio.executors.executor import AHEAD, Executor
from intaglio.executors.process_pool import ProcessPool
from intaglio.exporters import export
from intaglio.graph_passes.calibration import stream
from intaglio.graph_passes.calibration.data import CalibrationData
from intaglio.graph_passes.contract import PassInputs
from intaglio.graph_passes.run_passes import run_passes
from intaglio.graph_passes.weights.gptq import Gptq
from intaglio.processes.threads import bounded

SHAPES = [
    random_llama.Shape(384, 1344, 2, 6),
    random_llama.Shape(512, 1792, 2, 8),
    random_llama.Shape(768, 2688, 2, 12),
]
SEVENTY_BILLION = random_llama.Shape(8192, 28672, 80, 64, 8, 128_256)
LENGTH = 512  # tokens of a sequence of calibration text
SAMPLES, BATCH = 16, 2  # of the small runs
PRODUCTS = 1 << 20  # so that of the small models' layers, too, those behind an MLP are multiplied in tasks of their own
GIGA = 1e9


class Check(msgspec.Struct):
    """A run with processes, and what the simulation says of it."""

    parameters: int
    workers: int
    measured: float  # seconds
    simulated: float


class Answer(msgspec.Struct):
    """The cluster's time, and what each part of it is busy with; seconds and bytes."""

    parameters: int
    machines: int
    workers: int
    link: float  # bytes a second
    seconds: float
    computing: float  # of all workers together, divided by their number
    driver: float
    sending: float
    receiving: float
    sent: int
    received: int
    largest: int  # bytes of the largest argument or result, which a worker and the driver hold


class Result(msgspec.Struct):
    """Everything printed. `bytes_ratio`: of the planned bytes to the recorded ones, the worst of the three models."""

    bytes_ratio: float
    checks: list[Check]
    answers: list[Answer]


def simulate(
    works: Iterable[Work],
    costs: Costs,
    workers: int,
    link: float,
    machines: int = 1,
    delay: float = 0,
    piped: bool = False,
) -> tuple[float, float, float]:
    """Run the stages one after the other. `delay`: seconds between the driver's call and the task's start.

    `piped`: a worker does nothing else while arguments and results pass the link, as in a process pool.

    Return the seconds at the end, those of the driver's own work, and those of all workers.
    """
    now = driver_busy = computing = 0.0
    for work in works:
        seconds, opening, each = costs.task(work), costs.opening(work), costs.driver(work)
        before = costs.before(work)
        now += before
        driver_busy += before + each * work.tasks
        link_free = now + work.shared * min(machines, work.tasks) / link
        back_free = driver = now
        free = [(now, False)] * workers  # when, and whether the worker has opened the stretch
        arrived: list[float] = []
        for index in range(work.tasks):
            if index >= AHEAD * workers:
                driver = max(driver, arrived[index - AHEAD * workers])
            driver += each
            worker, opened = heapq.heappop(free)
            spent = seconds + (0 if opened else opening)
            link_free = max(link_free, driver, worker if piped else 0) + work.sent / link
            end = max(worker, link_free + delay) + spent
            back_free = max(back_free, end) + work.received / link
            heapq.heappush(free, (back_free if piped else end, True))
            computing += spent
            arrived.append(back_free)
        now = max(driver, back_free)
    return now, driver_busy, computing


def echo(array: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Return what was sent."""
    return array


def local_link() -> tuple[float, float, float]:
    """Bytes a second between this process and one of a pool, each way; seconds of an empty task and of the start."""
    array = np.zeros(32 << 20, np.uint8)
    with ProcessPool(1) as pool:
        start = time.perf_counter()
        list(pool.map(echo, [(array[:1],)]))
        first = time.perf_counter() - start
        start = time.perf_counter()
        list(pool.map(echo, [(array[:1],)] * 200))
        small = (time.perf_counter() - start) / 200
        start = time.perf_counter()
        for _ in range(8):
            list(pool.map(echo, [(array,)]))
        large = (time.perf_counter() - start) / 8
    return 2 * array.size / large, small, first


@click.command(help=(__doc__ or "").split("\n\n")[0])
@click.option("--machines", default=64, show_default=True)
@click.option("--workers", default=2, show_default=True, help="Of one thread, on each machine.")
@click.option("--link", default=10.0, show_default=True, help="Gigabits a second of a machine's network.")
@click.option("--samples", default=128, show_default=True, help="Sequences of 512 tokens.")
@click.option("--batch", "batches", multiple=True, default=[8, 1], show_default=True, help="Sequences of a task.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on one line.")
def main(machines: int, workers: int, link: float, samples: int, batches: tuple[int, ...], as_json: bool) -> None:
    """Record, check and simulate."""
    text = Text(SAMPLES // BATCH, BATCH, LENGTH)
    recorded, checks, ratios, sizes, afters = [], [], [], [], []
    measured: list[tuple[random_llama.Shape, int, float]] = []
    for model in SHAPES:
        with (
            tempfile.TemporaryDirectory() as folder,
            step(f"{model.parameters() / 1e6:.0f} million weights"),
            patch.object(stream, "PRODUCTS", PRODUCTS),
        ):
            run = prepared(model, Path(folder))
            recorder = Recorder()
            run(recorder)
            works = list(plan(model, text, PRODUCTS))
            ratios.append(agreement(works, recorder.stages))
            recorded += list(zip(works, recorder.stages, strict=True))
            sizes.append([1.0, model.parameters()])
            afters.append(recorder.after)
            for count in (1, 2):
                with bounded(count):
                    pool = ProcessPool(count)
                measured.append((model, count, run(pool)))
    costs = costs_of(recorded)
    after = fit(sizes, afters)
    rate, delay, start = local_link()
    for model, count, seconds in measured:
        simulated = start + simulate(plan(model, text, PRODUCTS), costs, count, rate, delay=delay, piped=True)[0]
        simulated += float(after @ [1.0, model.parameters()])
        checks.append(Check(model.parameters(), count, seconds, simulated))
    answers = [
        answer(costs, Text(samples // batch, batch, LENGTH), machines, workers, link * GIGA / 8, after)
        for batch in batches
    ]
    result = Result(max(ratios, key=lambda ratio: abs(math.log(ratio))), checks, answers)
    click.echo(msgspec.json.encode(result).decode() if as_json else table(result))


def prepared(shape: random_llama.Shape, folder: Path) -> Callable[[Executor], float]:
    """Export a model of random weights; return what compresses it with an executor, and the seconds that took."""
    random_llama.checkpoint(folder / "checkpoint", shape)
    export(folder / "checkpoint", folder / "bundle", check=False)
    (folder / "text.txt").write_text("\n".join(topics.values()))
    bundle = Bundle.open(folder / "bundle")
    data = CalibrationData.open(folder / "text.txt", bundle)

    def run(executor: Executor) -> float:
        model = load(bundle.path / "model.onnx", mapped=True)
        with executor:
            start = time.perf_counter()
            inputs = PassInputs(bundle.manifest, data, executor=executor)
            run_passes([Gptq(samples=SAMPLES, batch=BATCH)], model, inputs, 1)
            if isinstance(executor, Recorder):
                executor.finish()
            return time.perf_counter() - start

    return run


def agreement(works: Sequence[Work], stages: Sequence[Stage]) -> float:
    """Planned bytes over recorded ones, once stages, their order and the number of their tasks are equal."""
    planned = [(work.function, work.tasks) for work in works]
    found = [(stage.function, len(stage.tasks)) for stage in stages]
    if planned != found:
        raise click.ClickException(f"the plan has the stages {planned}, the recorded run {found}.")
    ours = sum(work.shared + work.tasks * (work.sent + work.received) for work in works)
    theirs = sum(stage.shared + sum(task.sent + task.received for task in stage.tasks) for stage in stages)
    return ours / theirs


def answer(
    costs: Costs, text: Text, machines: int, workers: int, link: float, after: npt.NDArray[np.float64]
) -> Answer:
    """Simulate 70 billion weights. `after`: seconds of the driver after the last task, as coefficients."""
    works = list(plan(SEVENTY_BILLION, text))
    seconds, driver, computing = simulate(works, costs, machines * workers, link, machines, 1e-3)
    end = float(after @ [1.0, SEVENTY_BILLION.parameters()])
    seconds, driver = seconds + end, driver + end
    sent = sum(work.shared * min(machines, work.tasks) + work.tasks * work.sent for work in works)
    received = sum(work.tasks * work.received for work in works)
    largest = max(max(work.sent, work.received, work.shared) for work in works)
    return Answer(
        SEVENTY_BILLION.parameters(), machines, workers, link, seconds, computing / machines / workers, driver,
        sent / link, received / link, sent, received, largest,
    )  # fmt: skip


def table(result: Result) -> str:
    """The result for people."""
    lines = [f"bytes, planned : recorded   {result.bytes_ratio:.3f}", ""]
    lines.append("weights   processes  measured  simulated  ratio")
    lines += [
        f"{each.parameters / 1e6:6.0f} M {each.workers:11} {each.measured:7.1f} s {each.simulated:8.1f} s "
        f"{each.simulated / each.measured:6.2f}"
        for each in result.checks
    ]
    for each in result.answers:
        lines += [
            "",
            f"{each.parameters / 1e9:.1f} billion weights, {each.machines} machines with {each.workers} workers, "
            f"{each.link * 8 / 1e9:.0f} Gbit/s: {each.seconds / 3600:.1f} hours",
            f"  workers compute    {each.computing / 3600:6.1f} h each",
            f"  the driver         {each.driver / 3600:6.1f} h",
            f"  its link, sending  {each.sending / 3600:6.1f} h, {each.sent / 1e12:.2f} TB",
            f"  receiving          {each.receiving / 3600:6.1f} h, {each.received / 1e12:.2f} TB",
            f"  largest array      {each.largest / 1e9:6.1f} GB",
            f"  held back most by  {held_back_by(each)}",
        ]
    return "\n".join(lines)


def held_back_by(each: Answer) -> str:
    """What takes most of the time."""
    parts = {
        "the workers": each.computing, "the driver's own work": each.driver,
        "what the driver sends": each.sending, "what the driver receives": each.receiving,
    }  # fmt: skip
    return max(parts, key=parts.__getitem__)


if __name__ == "__main__":
    main()
