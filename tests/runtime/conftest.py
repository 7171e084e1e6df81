from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from scheduled_models import Models, make_bundles, open_models

from intaglio.bundle.bundle import Axis, Manifest, Source, TensorSpec, create

WIDTH = 32
TYPES = {"float16": TensorProto.FLOAT16, "float32": TensorProto.FLOAT}
NodesAfter = Sequence[onnx.NodeProto]


def encoder(dtype: str, after: NodesAfter = (), output_dtype: str | None = None) -> onnx.ModelProto:
    """Embeddings, one attention head with a mask, a feed-forward; `after` are nodes from "hidden" to "out"."""
    rng = np.random.default_rng(7)
    kind = TYPES[dtype]
    weights = {
        "table": rng.standard_normal((100, WIDTH)),
        **{name: rng.standard_normal((WIDTH, WIDTH)) / 8 for name in ("query", "key", "value")},
        "wide": rng.standard_normal((WIDTH, 4 * WIDTH)) / 8,
        "narrow": rng.standard_normal((4 * WIDTH, WIDTH)) / 8,
        "gain": np.ones(WIDTH),
        "blocked": np.array(-1e4),
        "one": np.array(1.0),
    }
    node = helper.make_node
    nodes = [
        node("Gather", ["table", "input_ids"], ["x"], "embed"),
        *(node("MatMul", ["x", name], [name[0]], name) for name in ("query", "key", "value")),
        node("Transpose", ["k"], ["kt"], "transpose", perm=[0, 2, 1]),
        node("MatMul", ["q", "kt"], ["scores"], "scores"),
        node("Cast", ["attention_mask"], ["m"], "mask_cast", to=kind),
        node("Unsqueeze", ["m", "axis"], ["m3"], "mask_axis"),
        node("Sub", ["one", "m3"], ["hidden_mask"], "mask_invert"),
        node("Mul", ["hidden_mask", "blocked"], ["bias"], "mask_bias"),
        node("Add", ["scores", "bias"], ["masked"], "mask"),
        node("Softmax", ["masked"], ["p"], "softmax", axis=-1),
        node("MatMul", ["p", "v"], ["context"], "context"),
        node("LayerNormalization", ["context", "gain"], ["y"], "norm"),
        node("MatMul", ["y", "wide"], ["h"], "up"),
        node("Gelu", ["h"], ["g"], "gelu"),
        node("MatMul", ["g", "narrow"], ["hidden"], "down"),
        *(after or [node("Identity", ["hidden"], ["out"], "last")]),
    ]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "encoder",
        [info(name, TensorProto.INT64, ["batch", "sequence"]) for name in ("input_ids", "attention_mask")],
        [info("out", helper.np_dtype_to_tensor_dtype(np.dtype(output_dtype or dtype)), None)],
        [numpy_helper.from_array(value.astype(dtype), name) for name, value in weights.items()]
        + [numpy_helper.from_array(np.array([1]), "axis")],
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("intaglio", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


@pytest.fixture(scope="session")
def adder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """y = a + b over float32 [batch, 3]."""
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 3]) for name in "aby"]
    graph = helper.make_graph([helper.make_node("Add", ["a", "b"], ["y"])], "g", values[:2], values[2:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    path = tmp_path_factory.mktemp("adder") / "adder.onnx"
    onnx.save(model, path)
    return path


@pytest.fixture
def make_encoder(tmp_path: Path) -> Callable[..., Path]:
    """Write a small encoder as a bundle: (dtype, after, output_dtype, external weights or not) -> its path."""

    def make(
        dtype: str = "float16", after: NodesAfter = (), output_dtype: str | None = None, external: bool = False
    ) -> Path:
        path = tmp_path / f"encoder-{dtype}"
        output_dtype = output_dtype or dtype
        with create(path) as draft:
            model = encoder(dtype, after, output_dtype)
            external_data = {"save_as_external_data": external, "location": "model.onnx.data", "size_threshold": 64}
            onnx.save(model, draft.model_path, **external_data)
            draft.manifest = Manifest(
                format=1,
                created_by="tests",
                source=Source("onnx", "by hand"),
                family="",
                architecture="",
                task="",
                dtype=dtype,
                inputs=[TensorSpec(name, "int64", ("batch", "sequence")) for name in ("input_ids", "attention_mask")],
                outputs=[TensorSpec("out", output_dtype, ("batch", "sequence", WIDTH))],
                axes={"batch": Axis(), "sequence": Axis(1, 64)},
            )
        return path

    return make


@pytest.fixture
def feeds() -> dict[str, np.ndarray]:
    """Three sentences of up to eight tokens for the small encoder."""
    mask = np.array([[1] * 8, [1] * 5 + [0] * 3, [1] + [0] * 7])
    return {"input_ids": np.random.default_rng(3).integers(0, 100, mask.shape), "attention_mask": mask}


@pytest.fixture
def cuda_device() -> None:
    from intaglio.errors import MissingExtraError
    from intaglio.runtime.engines import gpus

    try:
        device = gpus.present()
    except MissingExtraError:
        device = None
    if device is None:
        pytest.skip("no CUDA device")


@pytest.fixture
def no_cuda_device() -> None:
    from intaglio.runtime.engines import gpus

    pytest.importorskip("cuda.bindings.runtime")
    if gpus.present() is not None:
        pytest.skip("a CUDA device is present")


@pytest.fixture(scope="session")
def models(
    make_decoder: Callable[..., tuple[Path, Path]],
    make_encoder_decoder: Callable[..., tuple[Path, Path]],
    once: Callable[[str, Callable[[Path], object]], Path],
) -> Iterator[dict[str, Models]]:
    """The small random models that a scheduler drives, by name."""
    made = make_bundles(make_decoder, make_encoder_decoder, once)
    with open_models(made) as opened:
        yield opened
