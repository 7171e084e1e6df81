"""Configurations in protobuf's text format; what is written is parsed by Triton's own message where it is installed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from triton_plans import add_plans
from triton_server import client

from intaglio.deploy import deploy_triton
from intaglio.deploy.triton.config import Word, parameters, read_text_format, string_bytes, tensor, text_format


def test_fields_are_written_as_protobuf_reads_them() -> None:
    message = {
        "name": 'a "b" \\ c\n',
        "max_batch_size": 8,
        "model_transaction_policy": {"decoupled": True},
        "input": [tensor("x", "int64", [-1]), tensor("y", "float32", [2, 3], optional=True)],
        "instance_group": {"kind": Word("KIND_CPU")},
        "parameters": parameters({"rows": 8, "target": "ort-cpu", "threads": None}),
    }
    assert text_format(message) == (
        'name: "a \\"b\\" \\\\ c\\n"\n'
        "max_batch_size: 8\n"
        "model_transaction_policy {\n  decoupled: true\n}\n"
        'input {\n  name: "x"\n  data_type: TYPE_INT64\n  dims: -1\n}\n'
        'input {\n  name: "y"\n  data_type: TYPE_FP32\n  dims: 2\n  dims: 3\n  optional: true\n}\n'
        "instance_group {\n  kind: KIND_CPU\n}\n"
        'parameters {\n  key: "rows"\n  value {\n    string_value: "8"\n  }\n}\n'
        'parameters {\n  key: "target"\n  value {\n    string_value: "ort-cpu"\n  }\n}\n'
    )


def test_other_spellings_of_the_text_format_are_read() -> None:
    text = """
    name: 'a # b'  # a comment
    version_policy: { specific < versions: [1, 3]; > },
    input [ { name: "x{" dims: -1 dims: 2 }, { name: "y" } ]
    output { }
    """
    assert read_text_format(text) == {
        "name": ["'a # b'"],
        "version_policy": [{"specific": [{"versions": ["1", "3"]}]}],
        "input": [{"name": ['"x{"'], "dims": ["-1", "2"]}, {"name": ['"y"']}],
        "output": [{}],
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('a: 1\nb: "x', "line 2: a string has no end"),
        ("a {", "got 'the end', expected a field"),
        ("a: }", "got '}', expected a value"),
        ("a: [1", "got 'the end', expected a value"),
        ("a { b: 1 >", "got '>', expected a field"),
        ("a", "got 'the end', expected a value"),
    ],
)
def test_damaged_text_is_an_error(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        read_text_format(text)


def test_text_has_its_length_in_front() -> None:
    assert string_bytes("é!") == b"\x03\x00\x00\x00\xc3\xa9!"


@pytest.fixture(scope="module")
def configurations(
    tiny_bundle: Path, tiny_int8_bundle: Path, tiny_decoder: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """Every kind of model that is written, those of classifiers left out: its name -> its config.pbtxt."""
    folder = tmp_path_factory.mktemp("repositories")
    t4 = ("tensorrt", "t4", {"smallest": [1, 4], "largest": [32, 40]})
    planned = add_plans(tiny_bundle, folder / "planned", t4, ("tensorrt", "a100", {"largest": [16, 64]}))
    deploy_triton([f"texts={tiny_bundle}", f"chat={tiny_decoder}"], folder / "python")
    graphs = [f"small={tiny_int8_bundle}", f"plain={tiny_bundle}"]
    deploy_triton(graphs, folder / "onnxruntime", backend="onnxruntime", mounted_at="/srv/m/")
    deploy_triton([f"plans={planned}"], folder / "tensorrt", gpus=["t4", "a100"])
    for name, policy in (("latest", "latest:2"), ("every", "all"), ("some", "specific:1,2")):
        deploy_triton([f"{name}={tiny_bundle}"], folder / name)
        deploy_triton([f"{name}={tiny_bundle}"], folder / name, model_version=2, version_policy=policy)
    return written(folder)


def written(folder: Path) -> dict[str, Path]:
    return {path.parent.name: path for path in sorted(folder.glob("*/*/config.pbtxt"))}


def test_library_of_operators_is_named_by_its_path_in_the_server(configurations: dict[str, Path]) -> None:
    text = configurations["small_graph"].read_text()
    assert 'model_operations {\n  op_library_filename: "/srv/m/small_graph/1/intaglio_operators.so"\n}' in text
    assert (configurations["small_graph"].parent / "1" / "intaglio_operators.so").stat().st_size > 100_000
    assert "model_operations" not in configurations["plain_graph"].read_text()


def test_plans_are_chosen_by_compute_capability(configurations: dict[str, Path]) -> None:
    text = configurations["plans_graph"].read_text()
    assert re.findall(r'key: "([\d.]+)"\n  value: "(.*)"', text) == [
        ("7.5", "tensorrt-t4.engine"),
        ("8.0", "tensorrt-a100.engine"),
    ]
    # What all of the plans take: 16 texts of 4 to 40 tokens.
    assert "max_batch_size: 16\n" in text and "KIND_GPU" in text
    tokenizer = configurations["plans_tokenizer"].read_text()
    assert 'key: "max_length"\n  value {\n    string_value: "40"' in tokenizer
    assert 'key: "min_length"\n  value {\n    string_value: "4"' in tokenizer


@pytest.mark.proof
def test_triton_message_accepts_what_is_written(
    configurations: dict[str, Path], classifier: Path, tmp_path: Path
) -> None:
    deploy_triton([f"mood={classifier}"], tmp_path / "python")
    deploy_triton([f"moods={classifier}"], tmp_path / "onnxruntime", backend="onnxruntime")
    files = configurations | written(tmp_path)
    found: list[dict[str, Any]] = client("triton_config.py", *files.values())
    assert not [each for each in found if "error" in each]
    assert [each["name"] for each in found] == list(files)
    by_name = {each["name"]: each for each in found}
    assert {each.get("platform", each.get("backend")) for each in found} == {
        "python", "onnxruntime", "tensorrt_plan", "ensemble",
    }  # fmt: skip
    assert all("model_warmup" in each for each in found if each.get("platform") != "ensemble")
    assert by_name["chat"]["model_transaction_policy"] == {"decoupled": True}
    assert by_name["texts"]["dynamic_batching"] == {"max_queue_delay_microseconds": "2000"}
    assert by_name["plans_graph"]["cc_model_filenames"] == {"7.5": "tensorrt-t4.engine", "8.0": "tensorrt-a100.engine"}
    assert [by_name[name]["version_policy"] for name in ("latest", "every", "some")] == [
        {"latest": {"num_versions": 2}}, {"all": {}}, {"specific": {"versions": ["1", "2"]}},
    ]  # fmt: skip
    steps = by_name["moods"]["ensemble_scheduling"]["step"]
    assert [step["model_name"] for step in steps] == ["moods_tokenizer", "moods_graph", "moods_scores"]
    # Each step's tensors match its model, and come from the steps before it.
    known = {each["name"] for each in by_name["moods"]["input"]}
    for step in steps:
        model = by_name[step["model_name"]]
        assert set(step["input_map"]) == {each["name"] for each in model["input"]}
        assert set(step["output_map"]) == {each["name"] for each in model["output"]}
        assert set(step["input_map"].values()) <= known
        known |= set(step["output_map"].values())
    assert {each["name"] for each in by_name["moods"]["output"]} <= known


@pytest.mark.proof
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("dynamic_batching", "dynamic_baching"),
        ("TYPE_STRING", "TYPE_TEXT"),
        ("max_batch_size: 32", 'max_batch_size: "32"'),
        ("KIND_CPU", '"KIND_CPU"'),
        ("    string_value", "    string"),
    ],
)
def test_damaged_configuration_is_rejected(
    configurations: dict[str, Path], tmp_path: Path, right: str, wrong: str
) -> None:
    text = configurations["texts"].read_text()
    assert right in text
    (tmp_path / "config.pbtxt").write_text(text.replace(right, wrong))
    assert "error" in client("triton_config.py", tmp_path / "config.pbtxt")[0]
