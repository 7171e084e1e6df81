"""The verb `bench`: measure a bundle or a server, and a baseline in turn with it."""

from __future__ import annotations

import inspect
import os
import statistics
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol, TypeGuard, Unpack

import msgspec

from intaglio.display.progress import step, track
from intaglio.errors import EngineError, UsageError, one_line
from intaglio.files.input_files import read_text
from intaglio.runtime.generation.generate import TextGenerator
from intaglio.runtime.generation.generator_options import WritingOptions
from intaglio.runtime.strategies import STRATEGIES
from intaglio.runtime.strategies.options import options_by_name
from intaglio.validation.bench import prompts
from intaglio.validation.bench.bundle_side import BundleSide
from intaglio.validation.bench.load import Load, Round
from intaglio.validation.bench.results import Bench, LoadResult, SubjectResult, row, side
from intaglio.validation.bench.server_side import PATHS, ServerSide
from intaglio.validation.reports.report import processor

REQUESTS = 16  # of a round, at least, and
REQUESTS_EACH = 4  # requests per round for each concurrent request
OF_THE_METHOD = (
    "adapter",
    "strategy",
    "draft",
    "early_exit",
    "cache_bits",
    *options_by_name(STRATEGIES),
)  # not for the baseline
NOT_TAKEN = (  # of `TextGenerator`
    *("bundle", "options", "batch", "scheduling", "schema", "grammar", "regex", "source_language", "target_language"),
)
OF_THE_PROCESS = ("target", "threads")  # not for a server that is measured beside a bundle


class Subject(Protocol):
    """What rounds are run on. A context manager."""

    subject: str
    kind: str
    unit: str

    def run(self, load: Load) -> Round:
        """Run a round."""


def bench(
    bundle: str | Path,
    baseline: str | Path | None = None,
    data: str | Path | None = None,
    prompt_tokens: Sequence[int] = (),
    concurrency: Sequence[int] = (1,),
    requests: int | None = None,
    seconds: float | None = None,
    rate: float | None = None,
    rounds: int = 3,
    api: str = "completions",
    model: str | None = None,
    api_key_env: str | None = None,
    timeout: float = 600.0,
    **options: Unpack[WritingOptions],
) -> Bench:
    """Measure latency, throughput and peak memory of `bundle`, a bundle or the URL of a server.

    `baseline`: a bundle, a URL, or the file of an earlier `--json`; bundles and servers take turns with `bundle`, round
    by round. `data`: a file of prompts; without it they are pieces of running text of each of `prompt_tokens` tokens.
    `concurrency`: requests at a time: rows of a decoder, texts of an encoder's batch, clients of a server. A round ends
    after `requests` requests or `seconds`; `rate`: requests per second of Poisson arrivals, for servers. `api`: one of
    `PATHS`; `model`: the server's; `api_key_env`: environment variable with the key. `options`: those of
    `TextGenerator`; strategy and draft are for `bundle` alone, the baseline generates plainly.

    Raises `UsageError` for invalid options, `EngineError` if a server does not answer, or all requests fail.
    """
    if rounds < 1:
        raise UsageError(f"rounds {rounds}: expected at least 1.")
    if not timeout > 0:
        raise UsageError(f"timeout {timeout:g}: expected more than 0 seconds.")
    if api not in PATHS:
        raise UsageError(f"api {api!r}: expected one of {', '.join(PATHS)}.")
    if data is not None and prompt_tokens:
        raise UsageError("--data and --prompt-tokens are both given, expected at most one. Leave one out.")
    if rate is not None and not all(is_url(each) for each in (bundle, baseline) if each):
        raise UsageError("--rate: applies to servers only. Leave it out.")
    loads = _loads(concurrency, prompt_tokens or (None,), requests, seconds, rate)
    given = None if data is None else prompts.read(Path(data), "--data")
    chosen = _chosen(options)
    plain = {name: value for name, value in chosen.items() if name not in OF_THE_METHOD}
    earlier = read_result(Path(baseline), loads) if _is_file(baseline) else None
    beside_bundle = any(not is_url(each) for each in (bundle, baseline if earlier is None else None) if each)

    def opened(subject: str, chosen: Mapping[str, Any]) -> Subject:
        if not is_url(subject):
            return BundleSide(subject, chosen, given, loads[0].concurrency)
        mine = {name: value for name, value in chosen.items() if not (beside_bundle and name in OF_THE_PROCESS)}
        sent = {**mine, "max_new_tokens": options.get("max_new_tokens", _DEFAULTS["max_new_tokens"])}
        return ServerSide(subject, api, model, _key(api_key_env), timeout, sent, given)

    with ExitStack() as stack:
        sides: list[Subject] = []
        for subject, own in ((bundle, chosen), (baseline if earlier is None else None, plain)):
            if subject is not None:
                with step(f"opening {subject}"):
                    sides.append(stack.enter_context(opened(str(subject), own)))  # type: ignore[arg-type]
        _check_units([*sides, *([earlier] if earlier else [])])
        measured = _measure(sides, loads, rounds)
    ours, *others = (_side(each, loads, found) for each, found in zip(sides, measured, strict=True))
    other = earlier or (others[0] if others else None)
    if other is not None:
        _compare(ours, other, in_turn=earlier is None)
    return Bench(
        **{name: getattr(ours, name) for name in ours.__struct_fields__},
        processor=processor(),
        rounds=rounds,
        baseline=other,
        ratio=ours.rows[0].ratio,
    )


_DEFAULTS = {name: each.default for name, each in inspect.signature(TextGenerator).parameters.items()}


def is_url(subject: str | Path) -> bool:
    """Whether `subject` is a server rather than a bundle."""
    return str(subject).startswith(("http://", "https://"))


def read_result(path: Path, loads: Sequence[Load]) -> SubjectResult:
    """Read the output of an earlier `--json`. Raises `UsageError` for another file, or one without these loads."""
    try:
        found = msgspec.json.decode(read_text(path, "--baseline"), type=SubjectResult)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise UsageError(
            f"--baseline {path}: not a result of intaglio bench --json ({one_line(error, 80)})."
        ) from error
    known = [(each.concurrency, each.prompt_tokens) for each in found.rows]
    for each in loads:
        if (each.concurrency, each.prompt_tokens) not in known:
            raise UsageError(
                f"--baseline {path}: was not measured with concurrency {each.concurrency} and prompt tokens "
                f"{each.prompt_tokens or 'of the default'}. Measure it with the same options."
            )
    return found


def _is_file(baseline: str | Path | None) -> TypeGuard[str | Path]:
    if baseline is None or is_url(baseline):
        return False
    return Path(baseline).suffix == ".json" and not Path(baseline).is_dir()


def _loads(
    concurrency: Sequence[int],
    lengths: Sequence[int | None],
    requests: int | None,
    seconds: float | None,
    rate: float | None,
) -> list[Load]:
    if not concurrency:
        raise UsageError("no concurrency. Give at least one number.")
    loads = []
    for at_a_time in concurrency:
        enough = max(REQUESTS, REQUESTS_EACH * at_a_time) if seconds is None else None
        loads += [
            Load(at_a_time, tokens, enough if requests is None else requests, seconds, rate) for tokens in lengths
        ]
    return loads


def _chosen(options: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the options of `TextGenerator` that are not at their defaults."""
    known = {**_DEFAULTS, **dict.fromkeys(options_by_name(STRATEGIES))}
    if unexpected := [name for name in options if name not in known or name in NOT_TAKEN]:
        raise UsageError(f"option {unexpected[0]!r}: expected one of {', '.join(sorted(known.keys() - NOT_TAKEN))}.")
    return {name: value for name, value in options.items() if value not in (known[name], ())}


def _key(variable: str | None) -> str | None:
    if variable is None:
        return None
    if not (key := os.environ.get(variable)):
        raise UsageError(f"--api-key-env {variable}: the environment variable is not set. Export it first.")
    return key


def _check_units(sides: Sequence[Subject | SubjectResult]) -> None:
    if len({each.unit for each in sides}) == 2:
        first, second = sides
        raise UsageError(
            f"{first.subject} is measured in {first.unit} per second, the baseline {second.subject} in {second.unit}. "
            "Choose a baseline of the same kind."
        )


def _measure(sides: Sequence[Subject], loads: Sequence[Load], rounds: int) -> list[list[list[Round]]]:
    """The rounds of each side and load; at each load the sides take turns, after a warm-up."""
    found: list[list[list[Round]]] = [[] for _ in sides]
    turns = [(load, number) for load in loads for number in range(-1, rounds)]
    for load, number in track(turns, "measuring", len(turns)):
        for measured, rows in zip(sides, found, strict=True):
            if number < 0:  # one request for each row of a batch, or client
                few = msgspec.structs.replace(load, requests=load.concurrency, seconds=None, rate=None, number=number)
                measured.run(few)
                rows.append([])
            else:
                rows[-1].append(measured.run(msgspec.structs.replace(load, number=number)))
    return found


def _side(measured: Subject, loads: Sequence[Load], found: Sequence[Sequence[Round]]) -> SubjectResult:
    rows: list[LoadResult] = []
    for load, rounds in zip(loads, found, strict=True):
        if not any(each.timings for each in rounds):
            _raise_failed(measured.subject, rounds)
        rows.append(row(load, rounds))
    peaks = [each.peak_bytes for rounds in found for each in rounds if each.peak_bytes is not None]
    return side(measured.subject, measured.kind, measured.unit, rows, max(peaks, default=None))


def _raise_failed(subject: str, rounds: Sequence[Round]) -> None:
    errors = {kind: sum(each.errors.get(kind, 0) for each in rounds) for each in rounds for kind in each.errors}
    if not errors:
        raise EngineError(f"{subject}: no request was finished. Give more --seconds, or --requests.")
    message = next((text for each in rounds for text in each.messages.values() if text), "no message")
    counts = ", ".join(f"{number} × {kind}" for kind, number in errors.items())
    raise EngineError(
        f"{subject}: all requests failed: {counts}; the first: {message}. Fix the server, or the options."
    )


def _compare(ours: SubjectResult, other: SubjectResult, in_turn: bool) -> None:
    """Set the ratios of `ours`: medians of the rounds' ratios if the sides took turns, else ratios of medians."""
    theirs = {(each.concurrency, each.prompt_tokens): each for each in other.rows}
    for each in ours.rows:
        match = theirs[each.concurrency, each.prompt_tokens]
        pairs = (
            zip(each.throughputs, match.throughputs, strict=True) if in_turn else [(each.throughput, match.throughput)]
        )
        ratios = [own / others for own, others in pairs if others]
        each.ratio = statistics.median(ratios) if ratios else None
