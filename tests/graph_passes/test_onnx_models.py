"""ONNX's own test models: each is exported, compressed and opened, and computes the same, or is refused by name."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import onnx
import pytest
from onnx_models import all_cases, outcome, read

from intaglio.bundle.bundle import Bundle
from intaglio.errors import GraphError, SourceError
from intaglio.exporters import export
from intaglio.graph_passes import compress

RECIPES = ["canonical", "fold", "float16", "inlined"]
GOOD = {"equal", "refused", "not run"}

# (module of the tests, test): types that are not tensors; what float16 lacks, or changes the meaning of; old opsets.
SAMPLE = [
    ("simple", "simple/test_sequence_model1"),
    ("simple", "simple/test_sequence_model4"),
    ("simple", "simple/test_sequence_model6"),
    ("simple", "simple/test_strnorm_model_nostopwords_nochangecase"),
    ("simple", "simple/test_single_relu_model"),
    ("pytorch-operator", "pytorch-operator/test_operator_reduced_mean"),
    ("pytorch-converted", "pytorch-converted/test_Softmin"),
    ("pytorch-converted", "pytorch-converted/test_MaxPool2d"),
    ("blackmanwindow", "node/test_blackmanwindow"),
    ("hannwindow", "node/test_hannwindow_symmetric"),
    ("hammingwindow", "node/test_hammingwindow"),
    ("eyelike", "node/test_eyelike_populate_off_main_diagonal"),
    ("bitcast", "node/test_bitcast_float32_to_int32"),
    ("bitcast", "node/test_bitcast_int32_to_float32"),
    ("scatternd", "node/test_scatternd_add"),
    ("affinegrid", "node/test_affine_grid_3d_expanded"),
    ("ai_onnx_ml.tree_ensemble", "node/test_ai_onnx_ml_tree_ensemble_set_membership"),
    ("ai_onnx_ml.binarizer", "node/test_ai_onnx_ml_binarizer"),
]


@pytest.mark.parametrize("recipe", ["fold", "float16"])
@pytest.mark.parametrize(("module", "name"), SAMPLE)
def test_models_of_onnx_compute_the_same(tmp_path: Path, module: str, name: str, recipe: str) -> None:
    assert outcome(read(name, module), recipe, tmp_path) == ("equal", "")


@pytest.mark.proof
def test_every_model_of_onnx_computes_the_same_or_is_refused(tmp_path: Path) -> None:
    counts: Counter[tuple[str, str]] = Counter()
    wrong = []
    for name in all_cases():
        case = read(name)
        for recipe in RECIPES:
            result, details = outcome(case, recipe, tmp_path)
            counts[recipe, result] += 1
            if result not in GOOD:
                wrong.append(f"{name} {recipe}: {result}: {details[:200]}")
            if result == "not run":
                break
    print(*sorted(counts.items()), sep="\n")  # noqa: T201
    assert wrong == []
    assert all(counts[recipe, "equal"] > 1300 for recipe in RECIPES)


@pytest.mark.parametrize(
    ("module", "name", "message"),
    [
        ("sequenceinsert", "node/test_sequence_insert_at_back", "its input 'sequence' is of type sequence"),
        ("splittosequence", "node/test_split_to_sequence_2", "its output 'seq' is of type sequence"),
        ("optionalgetelement", "node/test_optional_get_element_optional_tensor", "of type optional, expected a tensor"),
    ],
)
def test_non_tensor_inputs_and_outputs_are_refused(tmp_path: Path, module: str, name: str, message: str) -> None:
    onnx.save_model(read(name, module).model, tmp_path / "model.onnx")
    with pytest.raises(SourceError, match=message):
        export(tmp_path / "model.onnx", tmp_path / "bundle")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.onnx"]


def test_graph_rejected_by_onnxruntime_is_refused_with_its_recipe(tmp_path: Path) -> None:
    # The lengths of its Range have rank 1, which ONNX Runtime only detects once the condition of an If is folded.
    onnx.save_model(read("node/test_affine_grid_2d_expanded", "affinegrid").model, tmp_path / "model.onnx")
    export(tmp_path / "model.onnx", tmp_path / "bundle")
    with pytest.raises(
        GraphError, match=r"recipe fold: .*cannot open .*Range.* changed by: raise_opset, fold_con"
    ) as error:
        compress(tmp_path / "bundle", tmp_path / "out", "fold")
    assert "\n" not in str(error.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bundle", "model.onnx"]
    Bundle.open(tmp_path / "bundle")
