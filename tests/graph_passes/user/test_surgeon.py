"""A user function changes a graph if allowed, and an invalid result never becomes a bundle."""

from __future__ import annotations

import hashlib
import json
import re
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

import intaglio
from intaglio.bundle.bundle import Bundle
from intaglio.bundle.effect import Effect
from intaglio.bundle.model_file import load, save
from intaglio.errors import GraphError, MissingExtraError, UsageError
from intaglio.graph_passes.canonicalize import Canonicalize
from intaglio.graph_passes.contract import Counts, PassInputs
from intaglio.graph_passes.user import surgeon
from intaglio.graph_passes.user.code import UserCode
from intaglio.graph_passes.user.surgeon import Surgeon
from intaglio.validation.comparison.changes import changes_between, effect_of

pytest.importorskip("onnx_graphsurgeon", reason="onnx-graphsurgeon is not installed")

Run = Callable[..., tuple[int, str, str]]

MLP = "(float[A, 4] x) => (float[A, 2] y) { p = MatMul(x, a)  h = Relu(p)  q = MatMul(h, c)  y = Add(q, b) }"
WEIGHTS = {
    "a": np.arange(12, dtype=np.float32).reshape(4, 3),
    "c": np.ones((3, 2), np.float32),
    "b": np.ones(2, np.float32),
}
X = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)


@pytest.fixture
def changed(parse: Callable[..., ir.Model], tmp_path: Path) -> Callable[..., tuple[ir.Model, Counts]]:
    """A function: the body of a user function -> its result on a small graph."""

    def run(body: str, graph: str = MLP, model: ir.Model | None = None) -> tuple[ir.Model, Counts]:
        source = "import numpy as np\nimport onnx_graphsurgeon as gs\ndef change(graph):\n"
        (tmp_path / "own.py").write_text(source + textwrap.indent(textwrap.dedent(body), "    "))
        taken = parse(graph, WEIGHTS if graph == MLP else {}) if model is None else model
        return Surgeon("own:change")(taken, PassInputs(user_code=UserCode(tmp_path)))

    return run


def test_changed_nodes_and_weights_are_counted_and_used(
    changed: Callable[..., tuple[ir.Model, Counts]], compute: Callable[..., list[np.ndarray]], tmp_path: Path
) -> None:
    model, counts = changed(
        """
        relu = next(node for node in graph.nodes if node.op == "Relu")
        relu.op = "Sigmoid"
        add = graph.nodes[-1]
        product = add.inputs[0]
        product.inputs[0].inputs[1] = gs.Constant("half", np.full((3, 2), 0.5, np.float32))
        tanh = gs.Variable("tanh", np.float32, product.shape)
        graph.nodes.append(gs.Node("Tanh", inputs=[product], outputs=[tanh]))
        graph.outputs[0].inputs.clear()
        scale = gs.Constant("scale", np.array(3, np.float32))
        graph.nodes.append(gs.Node("Mul", inputs=[tanh, scale], outputs=[graph.outputs[0]]))
        graph.tensors()["a"].values = graph.tensors()["a"].values * 2
        return graph.cleanup().toposort()
        """
    )
    assert counts.rewritten == {
        "Add removed": 1, "MatMul changed": 1, "Mul added": 1, "Relu removed": 1, "Sigmoid added": 1, "Tanh added": 1,
        "weights added": 2, "weights changed": 1, "weights removed": 2,
    }  # fmt: skip
    (y,) = compute(model, x=X)
    hidden = 1 / (1 + np.exp(-(X @ (2 * WEIGHTS["a"]))))
    np.testing.assert_allclose(y, 3 * np.tanh(hidden @ np.full((3, 2), 0.5)), rtol=1e-5)
    assert counts.facts == {"sha256": hashlib.sha256((tmp_path / "own.py").read_bytes()).hexdigest()}


def test_unchanged_graph_is_identical(
    changed: Callable[..., tuple[ir.Model, Counts]], tiny_bundle: Path, tiny_decoder: Path, tiny_int8_bundle: Path
) -> None:
    for bundle in (tiny_bundle, tiny_decoder, tiny_int8_bundle):
        model = load(bundle / "model.onnx", mapped=True)
        made, counts = changed("return None", model=model)
        assert (counts.rewritten, counts.reasons) == ({}, ["own:change changed nothing"])
        before, after = model.graph.initializers, made.graph.initializers
        assert {name: value.const_value for name, value in before.items()} == {
            name: value.const_value for name, value in after.items()
        }, "weights that lay in a file were copied"
        assert made.opset_imports == model.opset_imports and made.ir_version == model.ir_version


def test_loop_body_is_visited_and_counted(changed: Callable[..., tuple[ir.Model, Counts]]) -> None:
    graph = """(bool c, float[2] x) => (float[2] y) { y = If(c) <
        then_branch = t () => (float[2] r) { r = Relu(x) }, else_branch = e () => (float[2] s) { s = Sigmoid(x) }> }"""
    _, counts = changed('graph.nodes[0].attrs["then_branch"].nodes[0].op = "Tanh"', graph)
    assert counts.rewritten == {"Relu removed": 1, "Tanh added": 1}


@pytest.mark.parametrize(
    ("body", "kind", "message"),
    [
        ("return 3", UsageError, "own:change: returned int, expected an onnx_graphsurgeon.Graph, or None"),
        ("return 1 / 0", UsageError, "own:change: ZeroDivisionError in line 4 of own.py: division by zero."),
        ("graph.nodes[0].op = 'Nonsense'", GraphError, "produced a graph that ONNX's checker rejects: No Op"),
        ("graph.nodes.reverse()", GraphError, "produced a graph that ONNX's checker rejects: Nodes in a graph"),
        ("graph.nodes[0].attrs['odd'] = 1", GraphError, "Unrecognized attribute: odd for operator MatMul"),
        ("graph.nodes[0].attrs['odd'] = object()", GraphError, "produced a graph that cannot be exported ("),
        ("graph.tensors()['a'].values = np.ones((5, 3), np.float32)", GraphError, "Incompatible dimensions"),
        ("p = graph.tensors()['p']; p.dtype, p.shape = np.float32, ['A', 7]", GraphError,
         "Inferred shape and existing shape differ"),
        ("graph.outputs[0].name = 'z'", GraphError,
         "got the outputs z float32[A, 2], expected y float32[A, 2], which the bundle has. Keep their names, order"),
        ("graph.inputs[0].dtype = np.float16", GraphError, "own:change produced a graph that ONNX's checker rejects: "),
        ("h = graph.tensors()['h']; h.dtype, h.shape = np.float32, ['A', 3]; graph.outputs.append(h)", GraphError,
         "got the outputs y float32[A, 2], h float32[A, 3],"),
        ("graph.inputs[0].name = 'w'", GraphError, "got the inputs w float32[A, 4], expected x float32[A, 4], which"),
        ("graph.outputs[0].dtype = None", GraphError, "produced a graph that cannot be exported ("),
        ("graph.inputs[0].shape = None", GraphError, "Field 'shape' of 'type' is required but missing. Fix"),
    ],
)  # fmt: skip
def test_invalid_results_are_refused_in_one_line(
    changed: Callable[..., tuple[ir.Model, Counts]], body: str, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind) as raised:
        changed(body)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_calibration_of_the_previous_graph_is_discarded(
    changed: Callable[..., tuple[ir.Model, Counts]], parse: Callable[..., ir.Model]
) -> None:
    model = parse(MLP, WEIGHTS)
    model.graph.inputs[0].meta["statistics"] = object()
    model.meta["calibration"] = "kept for the manifest"
    made, counts = changed("return graph", model=model)
    assert "earlier statistics of activations were dropped: calibrate after this pass" in counts.reasons
    assert not made.graph.inputs[0].meta and made.meta["calibration"] == "kept for the manifest"


def test_weights_beyond_the_protobuf_limit_are_refused(
    changed: Callable[..., tuple[ir.Model, Counts]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(surgeon, "LARGEST", 50)
    with pytest.raises(
        GraphError, match=r"own:change: the weights take 0\.0 GB, expected at most 0\.0, the limit of onnx-gr"
    ):
        changed("return graph")


def test_missing_library_is_named_before_any_pass_runs(
    tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnx_graphsurgeon", None)
    (tmp_path / "own.py").write_text("def change(graph): pass\n")
    (tmp_path / "recipe.yaml").write_text("passes: [surgeon: own:change]")
    with pytest.raises(MissingExtraError, match=r"pip install 'intaglio\[surgeon\]'"):
        intaglio.compress(tiny_bundle, tmp_path / "out", tmp_path / "recipe.yaml", allow_code=True)


# --- the command ------------------------------------------------------------------------------------------------------


def documented() -> tuple[str, list[str]]:
    """The function and the recipes that the documentation shows."""
    page = (Path(__file__).parents[3] / "docs" / "reference.md").read_text()
    section = page[page.index("### A function of your own") :].partition("\n## ")[0]
    (function,) = re.findall(r"```python\n(def .*?)```", section, re.DOTALL)
    return function, re.findall(r"```yaml\n(.*?)```", section, re.DOTALL)


@pytest.fixture
def command(request: pytest.FixtureRequest) -> Run:
    """The fixture `intaglio` under another name, because that of the package is in use here."""
    run: Run = request.getfixturevalue("intaglio")
    return run


@pytest.fixture
def example(tmp_path: Path) -> Path:
    function, recipes = documented()
    (tmp_path / "faster.py").write_text(function)
    (tmp_path / "gelu.yaml").write_text(recipes[0])
    (tmp_path / "stated.yaml").write_text(recipes[1])
    return tmp_path


def test_documented_example_runs_if_allowed_and_is_recorded(command: Run, tiny_bundle: Path, example: Path) -> None:
    arguments = ["compress", tiny_bundle, "-o", example / "out", "--recipe", example / "gelu.yaml", "--json"]
    code, out, error = command(*arguments)
    assert (code, out) == (2, "")
    assert "runs code that is not part of intaglio: faster:tanh_gelu. Read it" in error
    assert error.count("\n") == 1 and not (example / "out").exists()
    code, out, error = command(*arguments, "--allow-code")
    assert (code, error) == (0, "")
    digest = hashlib.sha256((example / "faster.py").read_bytes()).hexdigest()
    record = json.loads(out)["passes"][-1]
    assert record["name"] == "surgeon" and record["counts"] == {"Gelu changed": 2}
    assert record["options"] == {"function": "faster:tanh_gelu", "effect": "replaced", "sha256": digest}
    kept = Bundle.open(example / "out").manifest.passes[-1]
    assert (kept.name, kept.options, effect_of(kept)) == ("surgeon", record["options"], Effect.REPLACED)
    gelus = [node for node in load(example / "out" / "model.onnx").graph if node.op_type == "Gelu"]
    assert [node.attributes["approximate"].as_string() for node in gelus] == ["tanh", "tanh"]


def test_declared_effect_selects_the_bounds(tiny_bundle: Path, example: Path) -> None:
    for name, approximate in (("gelu", True), ("stated", False)):
        intaglio.compress(tiny_bundle, example / name, example / f"{name}.yaml", allow_code=True)
        changes = changes_between(Bundle.open(example / name).manifest, Bundle.open(tiny_bundle).manifest)
        assert (changes.approximate, changes.passes) == (approximate, ("surgeon",))
    assert intaglio.validate(example / "stated", against=tiny_bundle, samples=4).passed


def test_understated_effect_fails_the_comparison(tiny_bundle: Path, example: Path) -> None:
    source = documented()[0].replace('node.attrs["approximate"] = "tanh"', 'node.op, node.attrs = "Relu", {}')
    assert "Relu" in source
    (example / "faster.py").write_text(source)
    (example / "stated.yaml").write_text("passes: [{surgeon: {function: faster:tanh_gelu, effect: exact}}]")
    result = intaglio.compress(tiny_bundle, example / "out", example / "stated.yaml", allow_code=True)
    assert result.passes[-1].counts == {"Gelu removed": 2, "Relu added": 2}
    assert not intaglio.validate(example / "out", against=tiny_bundle, samples=4).passed


def test_unused_permission_to_run_code_is_refused(tiny_bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--allow-code: recipe canonical runs no code of its own\. Leave the option"):
        intaglio.compress(tiny_bundle, tmp_path / "out", "canonical", allow_code=True)


def test_misspelt_function_is_reported_before_any_pass_runs(
    tiny_bundle: Path, example: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Canonicalize, "_rewrite", lambda *_: pytest.fail("a pass ran"))
    (example / "gelu.yaml").write_text("passes: [canonicalize, surgeon: faster:tan_gelu]")
    with pytest.raises(UsageError, match="has no function tan_gelu"):
        intaglio.compress(tiny_bundle, example / "out", example / "gelu.yaml", allow_code=True)
    assert not (example / "out").exists()


def test_external_weights_stay_external(parse: Callable[..., ir.Model], tmp_path: Path) -> None:
    large = {**WEIGHTS, "a": np.ones((4, 3000), np.float32), "c": np.ones((3000, 2), np.float32)}
    save(parse(MLP, large), tmp_path / "model.onnx", external_above=0)
    (tmp_path / "own.py").write_text("def change(graph):\n    graph.tensors()['c'].values *= 2\n")
    model = load(tmp_path / "model.onnx")
    made, counts = Surgeon("own:change")(model, PassInputs(user_code=UserCode(tmp_path)))
    assert counts.rewritten == {"weights changed": 1}
    assert isinstance(made.graph.initializers["a"].const_value, ir.ExternalTensor)
    doubled = made.graph.initializers["c"].const_value
    assert doubled is not None and (doubled.numpy() == 2).all()
