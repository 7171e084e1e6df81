"""Errors of the ONNX checker, and of writing the graph for it, print one line."""

from __future__ import annotations

from typing import Any

import pytest

from intaglio.errors import GraphError
from intaglio.graph_passes.checker import check


def test_non_utf8_name_prints_one_line(parse: Any) -> None:
    """A damaged file has names that are not UTF-8, which are read as bytes and cannot be written."""
    model = parse("(float[2] x) => (float[2] y) { y = Relu(x) }")
    model.graph.inputs[0].name = b"attentio\xdf"  # type: ignore[assignment]  # as the library reads it
    with pytest.raises(GraphError, match=r"^the file contains a graph that ONNX's checker rejects: ") as error:
        check(model, "the file contains")
    assert "\n" not in str(error.value) and len(str(error.value)) < 500
