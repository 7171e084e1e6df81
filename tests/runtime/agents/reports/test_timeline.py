"""The trace, the critical path and the page of a run."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from agent_runs import INDEPENDENT, request, run_of, task

from intaglio.errors import UsageError
from intaglio.runtime.agents.reports.run_record import record_of
from intaglio.runtime.agents.reports.timeline import Step, critical_path, timeline
from intaglio.runtime.agents.reports.trace import read_trace, trace_bytes
from intaglio.runtime.agents.run.events import ModelWrote, TaskStarted

HOSTILE = "</pre></title></svg><script>alert(1)</script>\x1b[2J\x00 & \ud800 \"'<img src=x onerror=alert(2)>"


class Page(HTMLParser):
    """The elements of a page, and whether all are closed."""

    def __init__(self, source: str):
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(source)
        self.close()
        assert self._open == [], self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in ("meta",):
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_trace_is_read_back_unchanged(tmp_path: Path) -> None:
    (tmp_path / "trace").write_bytes(trace_bytes(INDEPENDENT))
    assert list(read_trace(tmp_path / "trace")) == INDEPENDENT


def test_unusual_values_do_not_break_a_trace(tmp_path: Path) -> None:
    arguments: dict[str, Any] = {"path": Path("a"), "big": 1 << 80, "odd": {(1, 2): 3, None: 4}, "half": "\ud800"}
    events = [TaskStarted(seconds=1.0, number=1, attempt=1, arguments=arguments)]
    (tmp_path / "trace").write_bytes(trace_bytes([*events, ModelWrote(seconds=2.0, request=1, text="\udcff\n")]))
    first, second = read_trace(tmp_path / "trace")
    assert isinstance(first, TaskStarted) and isinstance(second, ModelWrote)
    assert (first.arguments["path"], first.arguments["half"], second.text) == ("a", "?", "?\n")


@pytest.mark.parametrize("line", ["nonsense", '{"type": "Unknown", "seconds": 1}', '{"type": "Ended"}'])
def test_invalid_event_line_is_named(line: str, tmp_path: Path) -> None:
    (tmp_path / "trace").write_bytes(trace_bytes(INDEPENDENT[:2]) + line.encode() + b"\n")
    with pytest.raises(UsageError, match=r"trace: line 3 is no event \("):
        list(read_trace(tmp_path / "trace"))


def test_undecodable_line_is_named(tmp_path: Path) -> None:
    (tmp_path / "trace").write_bytes(trace_bytes(INDEPENDENT[:2]) + b"\xff\n")
    with pytest.raises(UsageError, match=r"trace: line 3 is not UTF-8 text \(byte 0 is 0xff\)"):
        list(read_trace(tmp_path / "trace"))


def test_critical_path_runs_through_the_plan_to_the_last_call() -> None:
    assert critical_path(record_of(INDEPENDENT)) == [
        Step("request", 1, 0.0, 2.5),
        Step("task", 3, 2.5, 4.5),
        Step("request", 2, 4.5, 5.5),
    ]


def test_critical_path_follows_the_slower_input() -> None:
    events = run_of(
        8.0,
        request(1, "planner", 0.0, 3.5),
        task(1, 1.0, 1.0, 5.0),
        task(2, 2.0, 2.0, 3.0),
        task(3, 3.0, 5.25, 7.0, needs=[1, 2]),  # a quarter of a second for a place
        request(2, "joiner", 7.0, 8.0),
    )
    assert critical_path(record_of(events)) == [
        Step("request", 1, 0.0, 1.0),
        Step("task", 1, 1.0, 5.0),
        Step("task", 3, 5.25, 7.0),
        Step("request", 2, 7.0, 8.0),
    ]


def test_critical_path_covers_all_plans() -> None:
    events = run_of(
        6.0,
        request(1, "planner", 0.0, 2.0),
        task(1, 0.5, 0.5, 1.0),  # hidden behind the rest of the plan
        request(2, "joiner", 2.0, 3.0),
        request(3, "planner", 3.0, 4.0),
        task(2, 4.0, 4.0, 5.0, needs=[1]),
        request(4, "joiner", 5.0, 6.0),
    )
    assert [(step.kind, step.number) for step in critical_path(record_of(events))] == [
        ("request", 1),
        ("request", 2),
        ("request", 3),
        ("task", 2),
        ("request", 4),
    ]


@pytest.mark.parametrize("length", range(len(INDEPENDENT) + 1))
def test_any_prefix_of_a_run_can_be_drawn(length: int) -> None:
    record = record_of(INDEPENDENT[:length])
    assert all(step.began <= step.ended for step in critical_path(record))
    page = Page(timeline(INDEPENDENT[:length]))
    assert page.tags.count("g") == len(record.requests) + len(record.tasks)


def test_page_has_lanes_and_marks_the_critical_path() -> None:
    page = timeline(INDEPENDENT, "Why?")
    parsed = Page(page)
    kinds = [value for name, value in parsed.attributes if name == "class" and value is not None]
    assert kinds.count("lane") == 5
    assert (kinds.count("request planner"), kinds.count("request joiner"), kinds.count("task done")) == (1, 1, 3)
    assert kinds.count("critical") == 3
    assert "Why?" in parsed.text and "It is so." in parsed.text and "answered" in parsed.text
    assert '1. search("a")' in parsed.text and "1.000 s to 4.000 s: 3.000 s" in parsed.text
    assert "200 tokens" not in parsed.text and "200 read, of which 120 were cached; 16 written" in parsed.text
    assert "3.500 s in requests, 2.000 s in tools" in parsed.text


def test_page_is_self_contained_and_supports_dark_mode() -> None:
    page = timeline(INDEPENDENT)
    parsed = Page(page)
    assert not {"script", "link", "img", "iframe"} & set(parsed.tags)
    assert not {"src", "href"} & {name for name, _ in parsed.attributes}
    assert not re.search(r"https?://|url\(|@import", page)
    assert "default-src 'none'" in page and "prefers-color-scheme: dark" in page


def test_model_and_tool_output_is_escaped() -> None:
    events = run_of(
        3.0,
        request(1, "planner", 0.0, 1.0, text=HOSTILE),
        task(1, 0.5, 0.5, 1.0, result=HOSTILE, tool=HOSTILE),
        task(2, 0.6, None, 1.0, needs=[1], status="skipped", result=HOSTILE),
        answer=HOSTILE,
    )
    page = timeline(events, HOSTILE)
    assert set(Page(page).tags) == set(Page(timeline(INDEPENDENT)).tags)
    assert "alert(1)" in Page(page).text
    assert not set(page) & {"\x1b", "\x00", "\ud800"}
    page.encode()


def test_long_results_are_truncated() -> None:
    events = run_of(2.0, request(1, "planner", 0.0, 1.0), task(1, 0.5, 0.5, 1.0, result="x" * 100_000))
    page = timeline(events)
    assert "96000 characters more" in page and len(page) < 30_000
