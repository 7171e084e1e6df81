"""The result of `bench`: percentiles of latency, throughput and peak memory, and ratios to a baseline."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence

import msgspec
import numpy as np

from intaglio.validation.bench.load import Load, Round, Timing


class Percentiles(msgspec.Struct):
    """Milliseconds, by nearest rank."""

    median_ms: float
    p90_ms: float
    p99_ms: float


class LoadResult(Percentiles, kw_only=True):
    """The measurement at one concurrency and prompt length; latencies of whole requests, of all rounds together."""

    concurrency: int
    prompt_tokens: int | None  # asked for; None: prompts of a file, or the default
    prompt_tokens_read: float  # mean of the processed tokens; 0: not reported
    requests: int  # finished ones
    throughput: float  # units per second, median of the rounds
    requests_per_second: float
    throughputs: list[float]  # of each round
    first_token: Percentiles | None = None  # time to first token
    per_token: Percentiles | None = None  # time per output token after the first
    errors: dict[str, int] = {}  # kind -> number
    ratio: float | None = None  # throughput divided by the baseline's


class SubjectResult(Percentiles, kw_only=True):
    """One subject; the numbers outside `rows` repeat its first row."""

    subject: str  # bundle or URL
    kind: str  # "decoder", "encoder-decoder", "encoder" or "server"
    unit: str  # of throughput: "tokens" or "texts"
    throughput: float
    peak_bytes: int | None  # resident memory of its process, with Python and all libraries; None: unknown
    rows: list[LoadResult]


class Bench(SubjectResult, kw_only=True):
    """The subject beside its baseline."""

    processor: str  # of the machine that measured
    rounds: int
    baseline: SubjectResult | None = None
    ratio: float | None = None  # throughput divided by the baseline's


def percentiles(seconds: Sequence[float]) -> Percentiles:
    """The percentiles of at least one time."""
    found = np.percentile(seconds, [50, 90, 99], method="inverted_cdf")
    return Percentiles(*(float(1e3 * each) for each in found))


def row(load: Load, rounds: Sequence[Round]) -> LoadResult:
    """Summarise the rounds of one load, with at least one finished request."""
    timings = [timing for each in rounds for timing in each.timings]
    throughputs = [sum(timing.units for timing in each.timings) / each.seconds for each in rounds]
    read = [timing.prompt_tokens for timing in timings if timing.prompt_tokens]
    return LoadResult(
        **msgspec.structs.asdict(percentiles([timing.seconds for timing in timings])),
        concurrency=load.concurrency,
        prompt_tokens=load.prompt_tokens,
        prompt_tokens_read=statistics.fmean(read) if read else 0.0,
        requests=len(timings),
        throughput=statistics.median(throughputs),
        requests_per_second=statistics.median(len(each.timings) / each.seconds for each in rounds),
        throughputs=throughputs,
        first_token=_optional(timings, "first"),
        per_token=_optional(timings, "per_token"),
        errors=dict(sum((Counter(each.errors) for each in rounds), Counter())),
    )


def _optional(timings: Sequence[Timing], name: str) -> Percentiles | None:
    known = [value for timing in timings if (value := getattr(timing, name)) is not None]
    return percentiles(known) if known else None


def side(subject: str, kind: str, unit: str, rows: list[LoadResult], peak_bytes: int | None) -> SubjectResult:
    """The result of one subject."""
    first = rows[0]
    return SubjectResult(
        **{name: getattr(first, name) for name in Percentiles.__struct_fields__},
        subject=subject,
        kind=kind,
        unit=unit,
        throughput=first.throughput,
        peak_bytes=peak_bytes,
        rows=rows,
    )
