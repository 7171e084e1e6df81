"""Sensitivities are the mean squared gradients of torch's autograd on the checkpoint."""

from __future__ import annotations

import json
import mmap
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
import torch
from squared_gradients import squared_gradients
from tiny_decoders import FAMILIES, save_decoder

from intaglio.bundle.bundle import Bundle, create
from intaglio.bundle.model_file import STREAMED_ABOVE, load, save
from intaglio.errors import BundleError, GraphError, UsageError
from intaglio.executors.shared_files import SharedBundle, SharedPath
from intaglio.exporters import export
from intaglio.graph_passes import compress
from intaglio.sensitivity_file import Observed, Sensitivities, SensitivityWriter
from intaglio.training.gradients.decoder_network import DecoderNetwork
from intaglio.training.gradients.sensitivity import sensitivity
from intaglio.training.gradients.weight_products import Weight
from intaglio.training.gradients.window_gradients import write_gradients

TEXT = "The quick brown fox jumps over the lazy dog; pack my box with five dozen liquor jugs. " * 3
LENGTH = 48  # tokens per piece


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(TEXT)
    return path


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[Path, Path]]:
    """A function: a family -> its checkpoint and its bundle."""
    made: dict[tuple[str, str], tuple[Path, Path]] = {}

    def make(family: str, dtype: str = "float32") -> tuple[Path, Path]:
        if (family, dtype) not in made:
            folder = tmp_path_factory.mktemp(family)
            checkpoint = save_decoder(folder / "checkpoint", family)
            export(str(checkpoint), folder / "bundle", dtype=dtype, check=False)
            made[family, dtype] = checkpoint, folder / "bundle"
        return made[family, dtype]

    return make


@pytest.mark.parametrize("family", FAMILIES)
def test_sensitivities_are_the_squared_gradients_in_every_family(
    family: str, exported: Callable[..., tuple[Path, Path]], text: Path, tmp_path: Path
) -> None:
    checkpoint, bundle = exported(family)
    result = sensitivity(bundle, tmp_path / "s", text, samples=3, tokens=LENGTH)
    assert (result.samples, result.tokens) == (3, 3 * LENGTH)
    found = Sensitivities.open(tmp_path / "s")
    gradients = squared_gradients(checkpoint, TEXT, 3, LENGTH)
    compared = 0
    for name, gradient in gradients.items():
        if gradient.ndim != 2:
            continue
        turned = f"{name}_transposed"
        called, wanted = (turned, gradient.T) if turned in found else (name, gradient)
        if called in found:
            actual = found.read(called, wanted.shape)
            np.testing.assert_allclose(actual, wanted, rtol=2e-3, atol=1e-6 * wanted.max(), err_msg=name)
            compared += 1
    assert compared == result.weights > 8


def test_float16_weights_have_similar_sensitivities(
    exported: Callable[..., tuple[Path, Path]], text: Path, tmp_path: Path
) -> None:
    for dtype in ("float32", "float16"):
        sensitivity(exported("llama", dtype)[1], tmp_path / dtype, text, samples=2, tokens=LENGTH)
    name, shape = "model.layers.1.mlp.down_proj.weight_transposed", (48, 32)
    full, half = (Sensitivities.open(tmp_path / dtype).read(name, shape) for dtype in ("float32", "float16"))
    assert np.corrcoef(full.reshape(-1), half.reshape(-1))[0, 1] > 0.999


def test_weights_of_16_bits_have_the_sensitivities_of_their_numbers(
    exported: Callable[..., tuple[Path, Path]], text: Path, tmp_path: Path
) -> None:
    recipe = tmp_path / "narrow.yaml"
    recipe.write_text("passes:\n  - narrow_weights: {dtype: bfloat16, smallest: 0}\n")
    bundle = exported("llama", "float32")[1]
    compress(bundle, tmp_path / "bundle", recipe=str(recipe))
    for name, each in (("float32", bundle), ("bfloat16", tmp_path / "bundle")):
        sensitivity(each, tmp_path / name, text, samples=2, tokens=LENGTH)
    name, shape = "model.layers.1.mlp.down_proj.weight_transposed", (48, 32)
    full, half = (Sensitivities.open(tmp_path / dtype).read(name, shape) for dtype in ("float32", "bfloat16"))
    assert np.corrcoef(full.reshape(-1), half.reshape(-1))[0, 1] > 0.999


def test_bytes_do_not_depend_on_the_number_of_threads(trained_pair: tuple[Path, Path], tmp_path: Path) -> None:
    """Of products that torch would divide among its threads."""
    calibration = Path(__file__).parents[3] / "examples" / "language_models" / "calibration.txt"
    for threads in (1, 2, 3):
        sensitivity(trained_pair[0], tmp_path / str(threads), calibration, samples=1, threads=threads)
    assert len({(tmp_path / str(threads)).read_bytes() for threads in (1, 2, 3)}) == 1


@pytest.mark.parametrize("place", ["inside the message", "beside it"])
def test_weights_stay_in_their_file(place: str, exported: Callable[..., tuple[Path, Path]], tmp_path: Path) -> None:
    model = load(exported("llama")[1] / "model.onnx")
    save(model, tmp_path / "model.onnx", external_above=0 if place == "beside it" else 1 << 30)
    network = DecoderNetwork(load(tmp_path / "model.onnx", mapped=True))
    weights = [constant for constant in network._constants.values() if isinstance(constant, Weight)]
    large = [weight for weight in weights if weight.array.nbytes > STREAMED_ABOVE]  # small ones are in the message
    assert len(large) > 4
    for weight in large:
        array = weight.array
        while isinstance(array.base, np.ndarray):
            array = array.base
        assert isinstance(array.base, mmap.mmap), weight.name


@pytest.mark.parametrize("offset", [0, 1])
def test_matrix_and_rows_are_the_same_wherever_the_array_begins(offset: int) -> None:
    numbers = np.arange(12, dtype=np.float32).reshape(3, 4)
    held = np.empty(numbers.nbytes + offset, np.uint8)[offset:]
    held[:] = np.frombuffer(numbers.tobytes(), np.uint8)
    for transposed in (False, True):
        weight = Weight("w", held.view(np.float32).reshape(3, 4), transposed)
        assert np.array_equal(weight.matrix().numpy(), numbers.T if transposed else numbers)
        assert np.array_equal(weight.rows(torch.tensor([[2, 0]])).numpy(), numbers[[[2, 0]]])


@pytest.mark.proof  # processes that import torch
def test_processes_write_the_bytes_of_this_one(
    exported: Callable[..., tuple[Path, Path]], text: Path, tmp_path: Path
) -> None:
    _, bundle = exported("llama")
    for executor in ("inline", "processes:2"):
        sensitivity(bundle, tmp_path / executor, text, 8, LENGTH, executor=executor)
    assert (tmp_path / "processes:2").read_bytes() == (tmp_path / "inline").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["inline", "processes:2"]


def test_workers_that_have_another_bundle_refuse_it(exported: Callable[..., tuple[Path, Path]], tmp_path: Path) -> None:
    _, bundle = exported("llama")
    observed = Observed({}, "text.txt", "", 1, 64)
    with pytest.raises(BundleError, match=r"it is another one\. Use storage that all machines share"):
        write_gradients(SharedBundle(SharedPath.of(bundle), "0" * 64), {}, observed, tmp_path / "out")


def test_too_few_tokens_are_refused(exported: Callable[..., tuple[Path, Path]], tmp_path: Path) -> None:
    (tmp_path / "two").write_text("two words")
    with pytest.raises(UsageError, match=r"9 tokens, expected at least 64"):
        sensitivity(exported("llama")[1], tmp_path / "s", tmp_path / "two")
    assert not (tmp_path / "s").exists()


def test_existing_output_is_kept_without_force(
    exported: Callable[..., tuple[Path, Path]], text: Path, tmp_path: Path
) -> None:
    (tmp_path / "s").write_text("mine")
    with pytest.raises(UsageError, match="exists already"):
        sensitivity(exported("llama")[1], tmp_path / "s", text)
    assert (tmp_path / "s").read_text() == "mine"
    for options in ({"samples": 0}, {"tokens": 1}):
        with pytest.raises(UsageError, match="expected at least"):
            sensitivity(exported("llama")[1], tmp_path / "other", text, **options)
    with pytest.raises(UsageError, match="Create it first"):
        sensitivity(exported("llama")[1], tmp_path / "no" / "s", text)


def test_non_finite_weights_are_refused_and_leave_no_file(
    exported: Callable[..., tuple[Path, Path]], text: Path, tmp_path: Path
) -> None:
    bundle = Bundle.open(exported("gpt2")[1])
    model = load(bundle.model_path)
    value = model.graph.initializers["transformer.h.1.mlp.c_fc.weight"]
    assert value.const_value is not None
    array = np.array(value.const_value.numpy())
    array[3, 5] = np.nan
    value.const_value = ir.tensor(array, name=value.name)
    with create(tmp_path / "bad") as draft:
        draft.copy_companions(bundle)
        draft.manifest = bundle.manifest
        save(model, draft.model_path)
    with pytest.raises(GraphError, match="NaN or infinite"):
        sensitivity(tmp_path / "bad", tmp_path / "s", text, samples=2, tokens=LENGTH)
    assert [path.name for path in tmp_path.iterdir()] == ["bad"]


def observed(model: dict[str, str] | None = None) -> Observed:
    return Observed(model or {"model.safetensors": "00"}, "text.txt", "11", 2, 100)


def test_file_round_trips(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    first, second = random.random((2, 3, 4), np.float32)
    with SensitivityWriter.create(tmp_path / "s", {"a": (3, 4), "b": (2, 2)}, observed()) as writer:
        writer.add("a", first)
        writer.add("b", np.ones((2, 2), np.float32))
        writer.add("a", second)
    from safetensors.numpy import load_file

    found = Sensitivities.open(tmp_path / "s")
    np.testing.assert_array_equal(found.read("a", (3, 4)), first + second)
    np.testing.assert_array_equal(load_file(tmp_path / "s")["a"], first + second)
    assert found.observed == observed()
    assert "c" not in found
    with pytest.raises(UsageError, match=r"has \[3, 4\] for a, expected \[4, 3\]"):
        found.read("a", (4, 3))
    with pytest.raises(UsageError, match="has none for c"):
        found.read("c", (4, 3))


def test_invalid_file_is_refused_in_one_line(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    with SensitivityWriter.create(tmp_path / "s", {"a": (30, 4)}, observed()) as writer:
        writer.add("a", np.ones((30, 4), np.float32))
    whole = (tmp_path / "s").read_bytes()
    (tmp_path / "short").write_bytes(whole[:-8])
    (tmp_path / "text").write_text("some text, and no safetensors header")
    (tmp_path / "empty").write_bytes(b"")
    save_file({"a": np.ones(3, np.float32)}, tmp_path / "other")
    for name in ("short", "text", "empty", "other"):
        with pytest.raises(UsageError, match="not a file of sensitivities") as error:
            Sensitivities.open(tmp_path / name)
        assert "\n" not in str(error.value)
    with pytest.raises(UsageError, match="No such file"):
        Sensitivities.open(tmp_path / "missing")


@pytest.mark.parametrize(
    "offsets",
    [[1.5, 481.5], [-480, 0], [2**62, 2**62 + 480], [0, 2**70], [480, 0], ["0", "480"], [0, 480, 960], [240, 720]],
    ids=["halves", "negative", "far", "beyond 64 bits", "backwards", "text", "three", "overlapping"],
)
def test_invalid_offsets_are_refused(offsets: list[object], tmp_path: Path) -> None:
    with SensitivityWriter.create(tmp_path / "s", {"a": (30, 4), "b": (30, 4)}, observed()):
        pass
    data = (tmp_path / "s").read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    header["b"]["data_offsets"] = offsets
    text = json.dumps(header).encode()
    (tmp_path / "s").write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])
    with pytest.raises(UsageError, match="not a file of sensitivities") as error:
        Sensitivities.open(tmp_path / "s")
    assert "\n" not in str(error.value)


def test_negative_or_infinite_sensitivities_are_refused(tmp_path: Path) -> None:
    for number in (-1, np.inf, np.nan):
        with SensitivityWriter.create(tmp_path / "s", {"a": (2, 2)}, observed()) as writer:
            writer.add("a", np.array([[1, 2], [number, 3]], np.float32))
        with pytest.raises(UsageError, match="a holds NaN, infinity or negative"):
            Sensitivities.open(tmp_path / "s").read("a", (2, 2))


def test_bundle_that_is_not_a_decoder_is_refused(text: Path, tmp_path: Path) -> None:
    with pytest.raises(BundleError):
        sensitivity(tmp_path / "none", tmp_path / "s", text)
