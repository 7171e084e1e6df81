"""The report: complete, self-contained, and well-formed for any names."""

from __future__ import annotations

import json
import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from intaglio.runtime.text.inputs import InputsUsed
from intaglio.validation.comparison.compare import HISTOGRAM_EDGES
from intaglio.validation.measures.measures import Measured
from intaglio.validation.reports.page import now
from intaglio.validation.reports.report import environment, to_html, to_json
from intaglio.validation.reports.results import LayerError, ModelRecord, OutputError, Report

HOSTILE = "</svg></td><script>alert(1)</script>\"'&\x00\x1b$name${bar}"
BINS = len(HISTOGRAM_EDGES) - 1


def make_report(name: str = "y", histogram: list[int] | None = None, **changes: object) -> Report:
    output = OutputError(
        max_abs=2e-3,
        mean_abs=1e-5,
        cosine=0.999,
        relative=1e-3,
        passed=False,
        bound="≤ 0.0001",
        reason="order of summation",
        limit=1e-4,
        cosine_floor=0.99999,
        broken=["largest error 0.002 is above 0.0001"],
        values=100,
        zeros=3,
        nans=0,
        infinities=0,
        histogram=histogram or [0] * 10 + [5, 40, 50, 2] + [0] * (BINS - 14),
    )
    layers = [
        LayerError(f"{name}.layer.{i}", "v", 10.0**-i, 10.0**-i, 0.9, 1e-5, passed=10.0**-i <= 1e-5) for i in range(12)
    ]
    report = Report(
        passed=False,
        judged=True,
        changes=f"weights of 4 to 6 bits ({name})",
        measures=[Measured("kl_divergence", 0.5, 0.025, at_least=False, passed=False, reason=f"observed {name}")],
        actual=ModelRecord(f"{name} on ort-cpu", name, {f"{name}.onnx": "ab" * 32}),
        expected=ModelRecord(f"{name} in PyTorch", f"other {name}", {"model.onnx": "cd" * 32}),
        outputs={name: output},
        not_compared=[f"{name} 2"],
        layers=layers,
        bisected=True,
        first_layer_beyond=layers[0],
        inputs=InputsUsed(f"{name}.txt", "ef" * 32, 64, 96, 8),
        environment=environment(),
        written=now(),
    )
    for field, value in changes.items():
        setattr(report, field, value)
    return report


def parse(html: str) -> ElementTree.Element:
    return ElementTree.fromstring(html.removeprefix("<!DOCTYPE html>"))  # noqa: S314 - our own page


def text_of(page: ElementTree.Element) -> str:
    return " ".join("".join(page.itertext()).split())


def test_page_contains_all_results() -> None:
    page = parse(to_html(make_report()))
    text = text_of(page)
    shown = ["FAILED", "y on ort-cpu", "y in PyTorch", "0 of 2 bounds held", "largest error 0.002 is above 0.0001"]
    shown += ["KL divergence, nats a token", "≤ 0.025", "weights of 4 to 6 bits (y)", "observed y"]
    shown += ["Not compared, as the other side has no such output: y 2", "y.layer.0", "bound 1e-05", "64 of 96 samples"]
    shown += ["ab" * 32, "cd" * 32, "ef" * 32, "polygraphy", "processor", "no error: 3 values"]
    assert [part for part in shown if part not in text] == []
    assert len(list(page.iter("svg"))) == 2


def test_correct_bundle_is_reported_as_passed() -> None:
    report = make_report(passed=True, first_layer_beyond=None, layers=[])
    report.outputs["y"].passed = True
    page = parse(to_html(report))
    assert "PASSED" in text_of(page) and "FAILED" not in text_of(page)
    assert "None: all are within" in text_of(page)
    assert len(list(page.iter("svg"))) == 1


def test_page_loads_no_external_resources() -> None:
    html = to_html(make_report())
    assert not re.search(r"https?:|\burl\(|@import|\bsrc\s*=|\bhref\s*=|<script|<link|<iframe|<object", html)


@pytest.mark.parametrize("name", [HOSTILE, "ünïcode 名前", "a" * 500, ""])
def test_html_in_names_is_escaped(name: str) -> None:
    page = parse(to_html(make_report(name)))
    assert not list(page.iter("script"))
    if name == HOSTILE:
        shown = HOSTILE.replace("\x00", "\ufffd").replace("\x1b", "\ufffd")
        assert shown in "".join(page.itertext())


@given(st.text(st.characters(codec=None), max_size=30))
def test_page_is_well_formed_for_any_name(name: str) -> None:
    parse(to_html(make_report(name)))


@given(
    st.lists(st.integers(0, 10**9), min_size=BINS, max_size=BINS),
    st.sampled_from([0.0, 1e-30, 1e-4, 1e30, float("inf")]),
    st.lists(st.floats(0, allow_infinity=True, allow_nan=False), max_size=60),
)
def test_plots_stay_inside_their_frame(histogram: list[int], limit: float, errors: list[float]) -> None:
    report = make_report(histogram=histogram)
    report.outputs["y"].limit = limit
    report.layers = [LayerError(f"l.{i}", "v", e, e, 1.0, 1e-5, e <= 1e-5) for i, e in enumerate(errors)]
    for picture in parse(to_html(report)).iter("svg"):
        _, _, width, height = map(float, picture.attrib["viewBox"].split())
        for bar in picture.iter("rect"):
            x, y, across, down = (float(bar.attrib[key]) for key in ("x", "y", "width", "height"))
            assert across >= 0 and down >= 0
            assert x >= 0 and y >= 0 and x + across <= width and y + down <= height
        for line in picture.iter("line"):
            assert all(0 <= float(line.attrib[key]) <= width for key in ("x1", "x2"))


def test_json_report_has_the_same_content() -> None:
    report = make_report()
    report.outputs["y"].max_abs = float("inf")
    read = json.loads(to_json(report))
    assert read["outputs"]["y"]["max_abs"] is None
    assert read["layers"][3]["relative"] == pytest.approx(1e-3)
    assert set(read) == set(Report.__struct_fields__)
