"""The recipes on speech recognisers, as users run them: equal transcripts, and features in float32."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import onnxruntime
import pytest
from tiny_speech import save_recogniser

from intaglio.bundle.bundle import Bundle
from intaglio.bundle.model_file import load
from intaglio.exporters import export
from intaglio.graph_passes import compress
from intaglio.runtime.modalities.audio import load_recordings
from intaglio.runtime.speech.recordings.run_recordings import run_recordings
from intaglio.validation import validate

RECORDINGS = Path(__file__).parents[2] / "intaglio" / "samples" / "recordings"
FEATURES = ("waves", "mel_filters")  # constants of the front end

Array = npt.NDArray[Any]


@pytest.fixture(scope="module", params=["squeezeformer", "conformer-ctc"])
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random recogniser with scales, shifts and statistics far from 1 and 0."""
    folder = tmp_path_factory.mktemp(request.param)
    save_recogniser(folder / "checkpoint", request.param)
    export(str(folder / "checkpoint"), folder / "bundle", check=False)
    return folder / "bundle"


def log_probs(bundle: Path) -> Array:
    """The outputs for two recordings of different lengths in one batch."""
    feeds, _ = load_recordings(Bundle.open(bundle), None, 2, 2)
    session = onnxruntime.InferenceSession(bundle / "model.onnx", providers=["CPUExecutionProvider"])
    found, frames = session.run(["log_probs", "output_lengths"], feeds[0])
    assert found.dtype == np.float32
    return np.concatenate([row[:count] for row, count in zip(found, frames, strict=True)])


def inside_blocks(path: Path) -> Counter[str]:
    """The operators of the encoder with a constant float32 operand, except the layers themselves."""
    model = load(path / "model.onnx")
    return Counter(
        node.op_type
        for node in model.graph
        if str(node.name).startswith(("encoder.layers", "speech/Mul"))
        and node.op_type in ("Mul", "Div", "Sub", "BatchNormalization")
        and any(
            value is not None and value.is_initializer() and value.dtype == ir.DataType.FLOAT for value in node.inputs
        )
    )


@pytest.mark.proof
def test_folded_recogniser_has_equal_transcripts_and_no_batch_norm(bundle: Path, tmp_path: Path) -> None:
    done = compress(bundle, tmp_path / "folded", "fold")
    counts = {record.name: record.counts for record in done.passes}
    assert counts["fold_batch_norm"] == {"batch normalisations": 3}
    # In each of 3 blocks: 4 scaling layers and the queries, or 2 half steps and the queries. Once: the input.
    scales = {"scales": 16, "shifts": 12} if "squeezeformer" in str(bundle) else {"scales": 10}
    assert counts["fold_scales"] == scales
    assert inside_blocks(bundle)["BatchNormalization"] == 3
    assert inside_blocks(bundle)["Mul"] >= 10
    left = inside_blocks(tmp_path / "folded")
    assert left - Counter({"Mul": 2}) == {}, "the angles of positions, at both frame rates, are all that may stay"
    np.testing.assert_allclose(log_probs(tmp_path / "folded"), log_probs(bundle), rtol=0, atol=1e-5)
    assert not [path for path in Bundle.open(tmp_path / "folded").manifest.layers if path.endswith("scaling")]


@pytest.mark.covering(1)
@pytest.mark.parametrize("recipe", ["float16", "int8-weights", "int8-qdq"])
def test_compressed_recogniser_passes_validation_and_keeps_its_features(
    bundle: Path, tmp_path: Path, recipe: str
) -> None:
    made = tmp_path / recipe
    one = RECORDINGS / "sentence-1.flac"
    (tmp_path / "calibration").mkdir()
    (tmp_path / "calibration" / one.name).symlink_to(one)
    done = compress(bundle, made, recipe, calibration=tmp_path / "calibration" if recipe == "int8-qdq" else None)
    assert {"fold_batch_norm", "fold_scales"} < {record.name for record in done.passes if record.counts}
    assert validate(made, against=bundle).passed
    graphs = [load(path / "model.onnx").graph for path in (bundle, made)]
    for name in FEATURES:
        before, after = (graph.initializers[name].const_value.numpy() for graph in graphs)
        np.testing.assert_array_equal(before, after)
        assert after.dtype == np.float32
    if recipe == "float16":  # positions at the reduced rate depend on earlier blocks only by their shape
        kept = {name for name, value in graphs[1].initializers.items() if value.dtype == ir.DataType.FLOAT}
        assert not [name for name in kept if name.startswith(("encoder.", "head."))]
    before, after = (Counter(n.op_type for n in graph if str(n.name).startswith("front_end")) for graph in graphs)
    assert set(after - before) <= {"Cast"}, "the features are rounded"
    assert [spec.dtype for spec in Bundle.open(made).manifest.inputs] == ["float32", "int64"]
    (first,) = run_recordings(Bundle.open(made), [str(one)], "ort-cpu")
    assert first.seconds > 3
