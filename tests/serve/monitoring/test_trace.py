"""The trace of a scheduler: complete, within its size, and readable after the server was killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from intaglio.bundle.bundle import Bundle
from intaglio.errors import UsageError
from intaglio.runtime.generation.requests.request import GenerationRequest
from intaglio.runtime.generation.scheduling.scheduler import Scheduler
from intaglio.runtime.generation.scheduling.scheduler_options import SchedulerOptions
from intaglio.runtime.sessions.decoder import DecoderSession
from intaglio.runtime.strategies import Speculative
from intaglio.serve.monitoring.trace import TraceFile

Events = list[dict[str, Any]]


@pytest.fixture
def scheduler(decoder_with_draft: tuple[Path, Path]) -> Iterator[Scheduler]:
    large, draft = decoder_with_draft
    with (
        DecoderSession.open(large, batch=2, threads=1) as target,
        DecoderSession.open(draft, batch=2, threads=1) as small,
    ):
        yield Scheduler(Bundle.open(large), target, small, SchedulerOptions(chunk=16))


def asked(seed: int, count: int = 6, prompt: int = 40) -> GenerationRequest:
    tokens = [10 + (seed + number) % 60 for number in range(prompt)]
    return GenerationRequest(tokens, max_new_tokens=count, ignore_eos=True, strategy=Speculative(window=2))


def run(scheduler: Scheduler) -> None:
    while not scheduler.idle:
        scheduler.step()


def read(path: Path) -> Events:
    events: Events = json.loads(path.read_text())
    return events


def test_trace_has_all_passes_and_requests(scheduler: Scheduler, tmp_path: Path) -> None:
    with TraceFile(tmp_path / "trace.json") as file:
        scheduler.observer = file.scheduler("llama")
        states = [scheduler.submit(asked(seed, 20)) for seed in range(3)]
        run(scheduler)
    events = read(tmp_path / "trace.json")
    passes = [event for event in events if event["ph"] == "X"]
    large = [event for event in passes if event["tid"] == 1]
    for track, part in ((large, "large"), ([event for event in passes if event["tid"] == 2], "small")):
        assert sum(event["args"]["tokens"] for event in track) == sum(
            getattr(state.counts.processed, part) for state in states
        )
        assert sum(event["args"]["rows"] for event in track) == sum(
            getattr(state.counts.calls, part) for state in states
        )
        ends = [event["ts"] + event["dur"] for event in track]
        assert all(end <= event["ts"] + 1 for end, event in zip(ends, track[1:], strict=False))  # one after the other
    assert {event["name"] for event in large} == {"prefill", "decode"}
    assert {event["name"] for event in passes if event["tid"] == 2} == {"prefill", "draft"}
    assert max(event["args"]["rows"] for event in passes) == 2
    waiting = [event["args"] for event in events if event["ph"] == "C"]
    assert {"running": 2, "waiting": 1} in waiting
    assert waiting[-1] == {"running": 0, "waiting": 0}


def test_request_tracks_have_phases_in_order(scheduler: Scheduler, tmp_path: Path) -> None:
    with TraceFile(tmp_path / "trace.json") as file:
        scheduler.observer = file.scheduler("llama")
        states = [scheduler.submit(asked(seed)) for seed in range(3)]
        cancelled = scheduler.submit(asked(9))  # waits for a row
        invalid = scheduler.submit(GenerationRequest([]))
        while not states[0].ended:
            scheduler.step()
            scheduler.cancel(cancelled)
        run(scheduler)
    assert invalid.error is not None
    tracks: dict[str, Events] = {}
    for event in read(tmp_path / "trace.json"):
        if event["ph"] in "be":
            assert event["cat"] == "request"
            tracks.setdefault(event["id2"]["local"], []).append(event)
    assert len(tracks) == 5
    shapes = Counter()
    for events in tracks.values():
        events.sort(key=lambda event: event["ts"])  # as the viewers do; stable
        shapes[" ".join(event["name"] + ("(" if event["ph"] == "b" else ")") for event in events)] += 1
    whole = "request( queued( queued) prompt( prompt) decoding( decoding) request)"
    assert shapes == {whole: 3, "request( queued( queued) request)": 2}
    reasons = Counter(events[-1]["args"]["reason"] for events in tracks.values())
    assert reasons == {"length": 3, "interrupted": 1, "UsageError": 1}
    assert all(events[-1]["args"]["tokens"] == 6 for events in tracks.values() if len(events) > 4)


def test_two_models_are_two_processes(scheduler: Scheduler, tmp_path: Path) -> None:
    with TraceFile(tmp_path / "trace.json") as file:
        for name in ("first", "second"):
            scheduler.observer = file.scheduler(name)
            scheduler.submit(asked(0, 1))
            run(scheduler)
    events = read(tmp_path / "trace.json")
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert names == {1: "first", 2: "second"}
    assert {event["pid"] for event in events if event["ph"] == "X"} == {1, 2}


def test_trace_holds_no_texts_and_does_not_change_them(scheduler: Scheduler, tmp_path: Path) -> None:
    state = scheduler.submit(GenerationRequest("abcdef " * 5, max_new_tokens=8))
    run(scheduler)
    with TraceFile(tmp_path / "trace.json") as file:
        scheduler.observer = file.scheduler("llama")
        traced = scheduler.submit(GenerationRequest("abcdef " * 5, max_new_tokens=8, reuse_prefix=False))
        run(scheduler)
    assert traced.tokens == state.tokens
    assert "abcdef" not in (tmp_path / "trace.json").read_text()


def test_full_trace_ends_with_a_note_within_its_limit(scheduler: Scheduler, tmp_path: Path) -> None:
    with TraceFile(tmp_path / "trace.json", max_megabytes=0.004) as file:
        scheduler.observer = file.scheduler("llama")
        states = [scheduler.submit(asked(seed, 20)) for seed in range(4)]
        run(scheduler)
    assert all(len(state.tokens) == 20 for state in states)
    assert 3000 < (tmp_path / "trace.json").stat().st_size <= 4000
    last = read(tmp_path / "trace.json")[-1]
    assert (last["ph"], last["name"]) == ("i", "the trace ends here: it has reached its limit of 0.004 MB")


def test_killed_server_leaves_all_events(decoder_with_draft: tuple[Path, Path], tmp_path: Path) -> None:
    code = """if True:
        import os, sys
        from pathlib import Path
        from intaglio.bundle.bundle import Bundle
        from intaglio.runtime.generation.requests.request import GenerationRequest
        from intaglio.runtime.generation.scheduling.scheduler import Scheduler
        from intaglio.runtime.sessions.decoder import DecoderSession
        from intaglio.serve.monitoring.trace import TraceFile

        bundle = Path(sys.argv[1])
        scheduler = Scheduler(Bundle.open(bundle), DecoderSession.open(bundle, threads=1))
        scheduler.observer = TraceFile(Path(sys.argv[2])).scheduler("llama")
        state = scheduler.submit(GenerationRequest([5, 6, 7], max_new_tokens=100, ignore_eos=True))
        while len(state.tokens) < 10:
            scheduler.step()
        os.kill(os.getpid(), 9)
    """
    path = tmp_path / "trace.json"
    done = subprocess.run([sys.executable, "-c", code, str(decoder_with_draft[0]), str(path)], timeout=120, check=False)
    assert done.returncode == -9
    events = json.loads(path.read_text() + "]")  # the viewers add the end
    assert sum(event["ph"] == "X" for event in events) == 10
    assert [event["name"] for event in events if event["ph"] == "b"] == ["request", "queued"]


def test_trace_write_error_ends_only_the_trace(
    scheduler: Scheduler, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    if not os.path.exists("/dev/full"):  # noqa: PTH110
        pytest.skip("no /dev/full")
    scheduler.observer = TraceFile(Path("/dev/full")).scheduler("llama")
    state = scheduler.submit(asked(0))
    run(scheduler)
    assert len(state.tokens) == 6
    (record,) = caplog.records
    assert "cannot be written: No space left on device" in record.getMessage()


def test_empty_trace_is_json(tmp_path: Path) -> None:
    TraceFile(tmp_path / "trace.json").close()
    assert read(tmp_path / "trace.json") == []


def test_invalid_path_or_size_raises_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"trace of 0 MB: expected at least 0.001"):
        TraceFile(tmp_path / "trace.json", max_megabytes=0)
    for path in (tmp_path, tmp_path / "missing" / "trace.json"):
        with pytest.raises(UsageError, match=r"Give a file in an existing directory\."):
            TraceFile(path)
