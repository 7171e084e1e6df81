"""Every pass has the same call signature and gets its declared requirements."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import onnx_ir as ir
import pytest

import intaglio
from intaglio.bundle.effect import Effect
from intaglio.errors import GraphError, UsageError
from intaglio.graph_passes import compress
from intaglio.graph_passes.contract import Counts, Need, Pass, PassInputs
from intaglio.graph_passes.lookup_tables.lut import Lut
from intaglio.graph_passes.lookup_tables.lut_sparse import LutSparse
from intaglio.graph_passes.pass_table import PASSES
from intaglio.graph_passes.pruning.prune_magnitude import PruneMagnitude
from intaglio.graph_passes.pruning.prune_rows import PruneRows
from intaglio.graph_passes.recipes.loading import load_recipe
from intaglio.graph_passes.weights.awq import Awq
from intaglio.graph_passes.weights.gptq import Gptq
from intaglio.graph_passes.weights.int8_absmax import Int8Absmax
from intaglio.graph_passes.weights.mixed import Mixed
from intaglio.graph_passes.weights.rtn import Rtn

RELU = "(float[2] x) => (float[2] y) { y = Relu(x) }"


def test_every_pass_has_the_same_call_signature() -> None:
    assert {name for name, kind in PASSES.items() if not issubclass(kind, Pass)} == set()
    assert {name for name, kind in PASSES.items() if kind.__call__ is not Pass.__call__} == set()


@pytest.mark.parametrize(
    ("recipe", "needs"),
    [
        ("canonical", set()),
        ("rtn", set()),
        ("prune-rows", set()),
        ("int8-only", {Need.CALIBRATION}),
        ("gptq", {Need.CALIBRATION}),
        ("lut", {Need.CALIBRATION, Need.SENSITIVITY}),
        ("lut-sparse", {Need.CALIBRATION, Need.SENSITIVITY}),
        ("mixed", {Need.CALIBRATION, Need.SENSITIVITY}),
    ],
)
def test_recipe_requires_what_its_passes_require(recipe: str, needs: set[Need]) -> None:
    assert {need for each in load_recipe(recipe)[1] for need in each.needs} == needs


def test_options_change_the_requirements_of_a_pass() -> None:
    assert Lut(compensate=False).needs == Mixed(compensate=False).needs == {Need.SENSITIVITY}
    assert Lut(unweighted=True).needs == {Need.CALIBRATION}
    assert Lut(unweighted=True, compensate=False).needs == frozenset()
    assert PruneRows(score="sensitivity").needs == {Need.SENSITIVITY}


@dataclass(frozen=True)
class Greedy(Pass):
    """Uses an undeclared requirement."""

    name: ClassVar[str] = "greedy"
    effect: ClassVar[Effect] = Effect.EXACT

    def _rewrite(self, model: ir.Model, inputs: PassInputs, counts: Counts) -> None:
        assert inputs.calibration is not None


def test_missing_requirement_is_refused_before_the_graph_changes(parse: Callable[..., ir.Model]) -> None:
    with pytest.raises(GraphError, match=r"^gptq: has no calibration text\. Give --calibration FILE"):
        Gptq()(parse(RELU))
    with pytest.raises(GraphError, match=r"^lut: has no sensitivities\. Give a file"):
        Lut(compensate=False)(parse(RELU), PassInputs())


def test_undeclared_requirement_is_reported(parse: Callable[..., ir.Model]) -> None:
    with pytest.raises(GraphError, match=r"used calibration without declaring it\. Add Need\.CALIBRATION"):
        Greedy()(parse(RELU))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda kind: kind(activation_bits=17), "activation_bits 17: expected one of 8, 16, 32."),
        (lambda kind: kind(bits=7), "bits 7: expected one of 2, 3, 4, 5, 6, 8."),
        (lambda kind: kind(group_size=48), "group_size 48: expected a multiple of 32, or 0 for whole rows."),
    ],
)
@pytest.mark.parametrize("kind", [Rtn, Gptq, Awq])
def test_shared_options_are_checked_in_each_pass(kind: type[Pass], make: Callable[..., Any], message: str) -> None:
    with pytest.raises(GraphError) as raised:
        make(kind)
    assert str(raised.value) == f"{kind.name}: {message}"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Int8Absmax(activation_bits=4), "int8_absmax: activation_bits 4: expected one of 8, 16, 32."),  # type: ignore[arg-type]
        (lambda: Lut(activation_bits=4), "lut: activation_bits 4: expected one of 8, 16, 32."),  # type: ignore[arg-type]
        (lambda: Gptq(samples=0), "gptq: samples 0: expected at least 1."),
        (lambda: Awq(batch=0), "awq: batch 0: expected at least 1."),
        (lambda: Lut(samples=0), "lut: samples 0: expected at least 1."),
        (lambda: Mixed(outliers=0.6), "mixed: outliers 0.6: expected a fraction of the weights, 0 to 0.5, such as"),
        (lambda: LutSparse(sensitive=-1), "lut_sparse: sensitive -1: expected a fraction of the weights, 0 to 0.5"),
        (lambda: PruneMagnitude(fraction=1), "prune_magnitude: fraction 1: expected 0 to below 1, such as 0.5."),
        (lambda: PruneRows(fraction=-1), "prune_rows: fraction -1: expected 0 to below 1, such as 0.5."),
    ],
)
def test_options_out_of_range_are_refused_at_construction(make: Callable[[], Pass], message: str) -> None:
    with pytest.raises(GraphError) as raised:
        make()
    assert str(raised.value).startswith(message)


def test_compress_is_one_function(tiny_bundle: Path, tmp_path: Path) -> None:
    from intaglio import compression, graph_passes

    assert intaglio.compress is graph_passes.compress is compression.compress is compress
    assert "compress" in dir(graph_passes)
    with pytest.raises(AttributeError, match=r"module 'intaglio\.graph_passes' has no attribute 'compres'"):
        graph_passes.compres  # type: ignore[attr-defined]  # noqa: B018


def test_sensitivities_need_text_or_a_file(tiny_decoder: Path, tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text("passes: [{lut: {compensate: false}}]")
    with pytest.raises(UsageError, match=r"Give --calibration FILE, a text to measure it on, or --sensitivity FILE"):
        compress(tiny_decoder, tmp_path / "out", tmp_path / "recipe.yaml")
    (tmp_path / "text").write_text("The quick brown fox jumps over the lazy dog. " * 20)
    done = compress(tiny_decoder, tmp_path / "out", tmp_path / "recipe.yaml", calibration=tmp_path / "text")
    assert done.passes[-1].counts["layers"] > 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "recipe.yaml", "text"]


def test_documented_pass_works(parse: Callable[..., ir.Model]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "extending.md").read_text()
    (code,) = re.findall(r"```python\n( *@dataclass\(frozen=True\)\n *class DropIdentities.*?) *```", page, re.DOTALL)
    names: dict[str, Any] = {}
    header = (
        "import onnx_ir as ir\nfrom dataclasses import dataclass\nfrom typing import ClassVar\n"
        "from intaglio.bundle.effect import Effect\n"
        "from intaglio.graph_passes.contract import Counts, Pass, PassInputs\n"
        "from intaglio.graph_passes.graphs import all_nodes, remove_if_dead\n"
    )
    exec(header + textwrap.dedent(code), names)  # noqa: S102
    model, counts = names["DropIdentities"]()(
        parse("(float[2] x) => (float[2] y) { a = Identity(x) b = Relu(a) y = Identity(b) }")
    )
    assert [node.op_type for node in model.graph] == ["Relu", "Identity"]
    assert (counts.rewritten, counts.reasons) == ({"identity": 1}, ["y: it is an output of the graph"])
