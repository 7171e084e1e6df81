"""Files of SqueezeLLM are converted and exported with the tables, codes and sparse numbers that they have."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from covering import examples, few
from hypothesis import given, settings
from hypothesis import strategies as st
from quantized_checkpoints import mapped
from squeezed_files import SECTION, file_of, squeezed

from intaglio.bundle.bundle import Bundle
from intaglio.bundle.model_file import load
from intaglio.cli import cli
from intaglio.errors import SourceError, UsageError
from intaglio.exporters import convert, export
from intaglio.exporters.checkpoints.checkpoint import Checkpoint
from intaglio.exporters.checkpoints.deferred import DeferredTensor
from intaglio.exporters.checkpoints.quantized.formats import joined
from intaglio.runtime import generate

Array = np.ndarray[Any, Any]
CASES = [("llama", 3, 0.0045, 2), ("opt", 4, 0.0, 0), ("mistral", 4, 0.01, 0), ("llama", 4, 0.0, 0)]


def read(parts: dict[str, Array]) -> Any:
    """The weight that the parts form."""
    return joined(mapped(parts), {"quantization_config": SECTION})["layer.weight"]


def numbers_of(weight: Any) -> int:
    """The numbers of its sparse matrix."""
    return 0 if weight.sparse is None else len(weight.sparse.values)


@settings(max_examples=examples(40))
@given(st.data())
def test_every_weight_is_read_to_the_bit(data: st.DataObject) -> None:
    bits, sparse = data.draw(st.sampled_from([3, 4])), data.draw(st.sampled_from([0.0, 0.01, 0.5]))
    rows, inputs = data.draw(st.integers(1, 40)), 32 * data.draw(st.integers(1, 3))
    full = data.draw(st.integers(0, min(3, rows))) if sparse else 0
    random = np.random.default_rng(data.draw(st.integers(0, 9)))
    weight = random.standard_normal((rows, inputs)).astype(np.float32)
    parts, numbers = squeezed(weight, bits, sparse, full, random)
    found = read(parts)
    assert (found.shape, found.bits) == ((rows, inputs), bits)
    np.testing.assert_array_equal(found.tensor.numpy(), numbers)
    assert numbers_of(found) == np.count_nonzero(numbers - np.take_along_axis(*_dense(parts, bits), 1))


def _dense(parts: dict[str, Array], bits: int) -> tuple[Array, Array]:
    """Tables and codes, read bit by bit."""
    words = parts["qweight"].view(np.uint32)
    stream = (words[:, None, :] >> np.arange(32, dtype=np.uint32)[None, :, None] & 1).reshape(-1, words.shape[1])
    codes = sum(stream[bit::bits].astype(np.int64) << bit for bit in range(bits))
    return parts["lookup_table"], np.asarray(codes).T


def test_a_full_row_and_sparse_numbers_at_one_place_are_added() -> None:
    parts, numbers = squeezed(
        np.random.default_rng(0).standard_normal((4, 32)).astype(np.float32), 4, 0.0, 0, np.random.default_rng(0)
    )
    parts |= {"rows": np.array([0, 2, 2, 2, 3], np.int32), "cols": np.array([1, 1, 31], np.int32)}
    parts |= {"vals": np.array([1, 2, 4], np.float32), "full_row_indices": np.array([0], np.int32)}
    parts |= {"full_rows": np.full((32, 1), 0.5, np.float32)}
    expected = numbers.copy()
    expected[0] += 0.5
    expected[0, 1] = numbers[0, 1] + np.float32(3.5)
    expected[3, 31] += 4
    np.testing.assert_array_equal(read(parts).tensor.numpy(), expected)


@settings(max_examples=examples(20))
@given(st.integers(0, 99))
def test_weights_below_each_other_are_joined_where_their_bits_are_equal(seed: int) -> None:
    import torch

    random = np.random.default_rng(seed)
    weights = [random.standard_normal((int(random.integers(1, 9)), 64)).astype(np.float32) for _ in range(3)]
    made = [squeezed(weight, 3, random.choice([0.0, 0.1]), 0, random) for weight in weights]
    parts = [DeferredTensor.of(str(index), read(each)) for index, (each, _) in enumerate(made)]
    joined_weight = torch.cat(parts).coded()
    assert joined_weight is not None and numbers_of(joined_weight) == sum(len(each.get("vals", ())) for each, _ in made)
    np.testing.assert_array_equal(joined_weight.tensor.numpy(), np.concatenate([numbers for _, numbers in made]))
    other = DeferredTensor.of("other", read(squeezed(weights[0], 4, 0.0, 0, random)[0]))
    with pytest.raises(SourceError, match="transformers changes this quantised weight while it loads it"):
        torch.cat([parts[0], other]).coded()


@pytest.mark.parametrize(
    ("model_type", "bits", "sparse", "full"),
    few(CASES, CASES[:1]),
)
def test_converted_file_writes_the_texts_of_its_numbers(
    model_type: str, bits: int, sparse: float, full: int, tmp_path: Path
) -> None:
    path = file_of(tmp_path, model_type, bits, sparse, full)
    result = convert(path, tmp_path / "checkpoint", base=tmp_path / "float")
    assert result.architecture == model_type
    assert result.left_out == ["model.other.weight"]
    floats = Checkpoint.open(str(tmp_path / "float")).tensors()
    assert result.parameters == sum(each.tensor.numel() for each in floats.values()) + 8
    run = CliRunner().invoke(cli, ["export", str(tmp_path / "checkpoint"), "-o", str(tmp_path / "bundle")])
    assert f"are kept as squeezellm has them: {bits} bits, a table for each output" in run.output
    assert (" sparse numbers are kept, " in run.output) == bool(sparse)
    export(tmp_path / "float", tmp_path / "plain")
    nodes = Counter(node.op_type for node in load(Bundle.open(tmp_path / "bundle").model_path).graph)
    assert nodes["LutMatMul"] > 0 and not nodes["CsrMatMul"]
    texts = [
        [each.tokens for each in generate(tmp_path / name, ["the red fox"], max_new_tokens=12)]
        for name in ("bundle", "plain")
    ]
    assert texts[0] == texts[1]


def test_what_the_file_lacks_is_read_from_the_base(tmp_path: Path) -> None:
    import torch

    path = file_of(tmp_path, "llama", 4, 0.0, 0, left_out="norm")
    convert(path, tmp_path / "checkpoint", base=tmp_path / "float")
    written, base = (Checkpoint.open(str(tmp_path / name)).tensors() for name in ("checkpoint", "float"))
    norms = [name for name in base if "norm" in name]
    assert norms and all(torch.equal(written[name].tensor, base[name].tensor) for name in norms)
    (tmp_path / "float" / "model.safetensors").unlink()
    with pytest.raises(
        SourceError, match=r"weights of LlamaForCausalLM are missing or have another shape \(model\.l.*"
    ):
        convert(path, tmp_path / "again", base=tmp_path / "float")
    assert not (tmp_path / "again").exists()
    (tmp_path / "float" / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(SourceError, match=r"Give its weights as safetensors: intaglio convert .*float -o BASE"):
        convert(path, tmp_path / "again", base=tmp_path / "float")


def test_base_is_by_default_the_folder_of_the_file(tmp_path: Path) -> None:
    path = file_of(tmp_path, "llama", 4, 0.0, 0)
    with pytest.raises(SourceError, match=r"no config\.json in .* intaglio convert .*sq\.pt --base FOLDER"):
        convert(path, tmp_path / "checkpoint")
    beside = Path(shutil.copy(path, tmp_path / "float" / "sq-llama.pt"))
    (tmp_path / "float" / "quant_config.json").write_text(json.dumps({"wbits": 4}))
    assert convert(beside, tmp_path / "checkpoint").architecture == "llama"
    with pytest.raises(SourceError, match="its weights are quantised already"):
        convert(path, tmp_path / "again", base=tmp_path / "checkpoint")


DAMAGE = {
    "a table of another length": ({"lookup_table": np.zeros((4, 9), np.float32)}, "do not form a weight of SqueezeLLM"),
    "tables of other outputs": ({"lookup_table": np.zeros((5, 16), np.float32)}, "do not form a weight of SqueezeLLM"),
    "a cut matrix of codes": ({"qweight": np.zeros((3, 4), np.int32)}, "do not form a weight of SqueezeLLM"),
    "codes of another dtype": ({"qweight": np.zeros((4, 4), np.int64)}, "do not form a weight of SqueezeLLM"),
    "offsets that are no integers": ({"rows": np.array([0, 2, 2, 2, 3], np.float32)}, "do not form a weight of Squ"),
    "a table of integers": ({"lookup_table": np.zeros((4, 16), np.int32)}, "do not form a weight of SqueezeLLM"),
    "offsets that descend": ({"rows": np.array([0, 2, 1, 3, 3], np.int32)}, "do not form a weight of SqueezeLLM"),
    "offsets beyond the numbers": ({"rows": np.array([0, 2, 2, 2, 9], np.int32)}, "do not form a weight of SqueezeLLM"),
    "a column outside": ({"cols": np.array([1, 32, 3], np.int32)}, "sparse number at 32, expected 0 to 31"),
    "a negative column": ({"cols": np.array([1, -1, 3], np.int32)}, "sparse number at -1, expected 0 to 31"),
    "fewer numbers than columns": ({"vals": np.zeros(2, np.float32)}, "do not form a weight of SqueezeLLM"),
    "full rows without their outputs": ({"full_rows": np.zeros((32, 1), np.float32)}, "do not form a weight"),
    "full rows of other inputs": (
        {"full_rows": np.zeros((31, 1), np.float32), "full_row_indices": np.zeros(1, np.int32)},
        "do not form a weight of SqueezeLLM",
    ),
    "a full row of no output": (
        {"full_rows": np.ones((32, 1), np.float32), "full_row_indices": np.full(1, 4, np.int32)},
        "sparse number at 4, expected 0 to 3",
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_parts_get_one_line(damage: str) -> None:
    weight = np.random.default_rng(0).standard_normal((4, 32)).astype(np.float32)
    parts, _ = squeezed(weight, 4, 0.0, 0, np.random.default_rng(0))
    parts |= {"rows": np.array([0, 2, 2, 2, 3], np.int32), "cols": np.array([1, 2, 31], np.int32)}
    parts |= {"vals": np.ones(3, np.float32)}
    changed, message = DAMAGE[damage]
    with pytest.raises(SourceError, match=message):
        read(parts | changed)
    with pytest.raises(SourceError, match="do not form a weight of SqueezeLLM"):
        read({name: each for name, each in parts.items() if name != "cols"})


def test_files_that_lie_get_one_line(tmp_path: Path) -> None:
    import torch

    path = file_of(tmp_path, "llama", 3, 0.01, 0)
    state, base = torch.load(path, weights_only=True), tmp_path / "float"
    count = next(name for name in state if name.startswith("sparse_threshold."))
    first = next(name for name in state if name.endswith(".lookup_table"))
    for changed, message in [
        ({count: state[count] + 1}, "sparse_threshold.*, and no number of sparse values"),
        ({"other": "text"}, "other is 'text', and no number of sparse values"),
        ({first: torch.zeros(1).expand(1 << 20, 8)}, "is not stored as its 8388608 numbers"),
        ({first: state[first].to_sparse()}, "is not stored as its 512 numbers"),
    ]:
        torch.save(state | changed, path)
        with pytest.raises(SourceError, match=message):
            convert(path, tmp_path / "checkpoint", base=base)
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(SourceError, match="or is damaged"):
        convert(path, tmp_path / "checkpoint", base=base)
    assert not (tmp_path / "checkpoint").exists()


def test_other_files_of_torch_and_bases_of_other_sources_are_refused(tmp_path: Path) -> None:
    import torch

    torch.save({"weight": torch.zeros(3)}, tmp_path / "other.pt")
    with pytest.raises(UsageError, match=r"--base is for files of SqueezeLLM \(\.pt\), and .* is none"):
        convert(tmp_path / "other.pt", tmp_path / "checkpoint", base=tmp_path)
    with pytest.raises(SourceError, match=r"a file of torch \(other\.pt\)"):
        convert(tmp_path / "other.pt", tmp_path / "checkpoint")
    torch.save({"layer.lookup_table": print}, tmp_path / "code.pt")
    with pytest.raises(SourceError, match="cannot be read without running code from it"):
        convert(tmp_path / "code.pt", tmp_path / "checkpoint")
    (tmp_path / "sq-llama-7b-w3-s0.pt").write_bytes(b"")
    with pytest.raises(SourceError, match=r"weights of SqueezeLLM \(sq-llama-7b-w3-s0\.pt\).*--base FOLDER"):
        export(tmp_path / "sq-llama-7b-w3-s0.pt", tmp_path / "bundle")
