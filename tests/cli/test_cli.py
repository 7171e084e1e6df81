"""The command line: JSON output, exit codes, help, and pipes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from intaglio.bundle.bundle import Bundle
from intaglio.cli import VERBS, main
from intaglio.files.hashes import sha256

Run = Callable[..., tuple[int, str, str]]


def test_export_prints_one_object(intaglio: Run, tiny_checkpoint: Path, tmp_path: Path) -> None:
    code, out, err = intaglio("export", tiny_checkpoint, "-o", tmp_path / "b", "--json")
    assert (code, err) == (0, "")
    result = json.loads(out)
    assert out.count("\n") == 1
    assert result["passed"] is True
    assert result["bundle"] == str(tmp_path / "b")
    assert result["outputs"].keys() == {"last_hidden_state", "sentence_embedding"}
    assert result["outputs"]["last_hidden_state"].keys() >= {"max_abs", "cosine"}


def test_validate_exits_with_code_1_if_a_bound_is_exceeded(intaglio: Run, tiny_bundle_copy: Path) -> None:
    code, out, _ = intaglio("validate", tiny_bundle_copy, "--json")
    result = json.loads(out)
    assert (code, result["passed"]) == (0, True)
    assert Path(result["report"]).is_file()
    assert result["outputs"]["last_hidden_state"].keys() >= {"max_abs", "mean_abs", "cosine"}
    code, out, _ = intaglio("validate", tiny_bundle_copy, "--json", "--max-abs", "0", "--against", "reference")
    assert (code, json.loads(out)["passed"]) == (1, False)


def test_run_prints_one_object_per_line(intaglio: Run, tiny_bundle: Path, tmp_path: Path) -> None:
    code, out, _ = intaglio("run", tiny_bundle, "one", "two", "--json")
    lines = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert [line["text"] for line in lines] == ["one", "two"]
    assert np.linalg.norm(lines[0]["embedding"]) == pytest.approx(1.0, abs=1e-5)
    (tmp_path / "texts.txt").write_text("one\ntwo\n")
    assert intaglio("run", tiny_bundle, "--input", tmp_path / "texts.txt", "--json") == (0, out, "")
    assert intaglio("run", tiny_bundle, "--json", stdin="one\ntwo\n") == (0, out, "")
    assert intaglio("run", tiny_bundle, "--input", "-", "--json", stdin="one\ntwo\n") == (0, out, "")


def test_prompt_is_prepended_to_each_text(intaglio: Run, tiny_bundle_copy: Path, recogniser: Path) -> None:
    manifest = json.loads((tiny_bundle_copy / "bundle.json").read_text())
    prompts = {"query": {"text": "a query: "}, "document": {"text": ""}}
    changed = {**manifest, "prompts": prompts, "default_prompt": "query", "similarity": "dot"}
    (tiny_bundle_copy / "bundle.json").write_text(json.dumps(changed))

    def embedding(*arguments: str) -> object:
        code, out, err = intaglio("run", tiny_bundle_copy, "--json", *arguments)
        assert (code, err) == (0, "")
        return json.loads(out)["embedding"]

    assert embedding("b c") == embedding("b c", "--prompt-name", "query")
    assert embedding("b c") == embedding("a query: b c", "--prompt-name", "document")
    found = json.loads(intaglio("run", tiny_bundle_copy, "--similarity", "--json", "a", "a query: a")[1])
    same = json.loads(
        intaglio("run", tiny_bundle_copy, "--similarity", "--json", "--prompt-name", "document", "a", "a query: a")[1]
    )
    assert found["function"] == "dot" and found["similarity"] != same["similarity"]
    assert "Dot products" in intaglio("run", tiny_bundle_copy, "--similarity", "a", "b")[1]
    for bundle, message in (
        (tiny_bundle_copy, "--prompt-name 'q': expected one of the model's prompts: query, document."),
        (recogniser, "--prompt-name is for embeddings of texts, and the bundle takes recordings. Leave it out."),
    ):
        code, out, err = intaglio("run", bundle, "--prompt-name", "q", "a")
        assert (code, out) == (2, "") and message in err


def test_similarities_are_shown_as_a_matrix_of_numbered_texts(intaglio: Run, minilm_bundle: Path) -> None:
    texts = ["A cat sits on the mat.", "A kitten rests on a rug.", "Stock markets fell on Monday."]
    code, out, err = intaglio("run", minilm_bundle, "--similarity", *texts)
    assert (code, err) == (0, "")
    assert "  2   A kitten rests on a rug.\n" in out
    assert "  1   1.000   0.665   0.052\n" in out
    result = json.loads(intaglio("run", minilm_bundle, "--similarity", "--json", *texts)[1])
    assert result["texts"] == texts
    assert np.array(result["similarity"])[0] == pytest.approx([1, 0.665, 0.052], abs=1e-3)


def test_many_texts_show_only_the_most_similar_pairs(intaglio: Run, tiny_bundle: Path) -> None:
    code, out, _ = intaglio("run", tiny_bundle, "--similarity", *[f"{number} texts" for number in range(9)])
    lines = out.splitlines()
    assert (code, lines[0]) == (0, "Most similar pairs of 9 texts")
    cosines = [float(line.split()[0]) for line in lines[4:-1]]
    assert len(cosines) == 20
    assert cosines == sorted(cosines, reverse=True)


def test_inspect_counts_everything(intaglio: Run, tiny_bundle: Path) -> None:
    code, out, _ = intaglio("inspect", tiny_bundle, "--json")
    found = json.loads(out)
    assert code == 0
    assert found.keys() >= {"operators", "parameters", "bits_per_weight", "bytes", "passes", "engines"}
    assert found["operators"]["Gelu"] == 2
    assert found["operators_by_dtype"]["Gelu"] == {"float32": 2}
    assert found["bytes"] == sum(path.stat().st_size for path in tiny_bundle.rglob("*")) - (
        (tiny_bundle / "bundle.json").stat().st_size
    )
    assert 32 <= found["bits_per_weight"] < 33  # tables of positions are stored too
    assert intaglio("inspect", tiny_bundle)[0] == 0


def test_build_lists_the_engines(intaglio: Run, tiny_bundle_copy: Path) -> None:
    code, out, _ = intaglio("build", tiny_bundle_copy, "--target", "ort-cpu", "--json")
    (engine,) = json.loads(out)["engines"]
    assert code == 0
    assert engine.keys() >= {"path", "target", "gpu", "sm", "bytes"}
    assert (tiny_bundle_copy / engine["path"]).stat().st_size == engine["bytes"]


@pytest.mark.proof
def test_compiler_output_stays_out_of_the_json(intaglio: Run, tiny_bundle: Path, tmp_path: Path) -> None:
    """TensorRT-RTX's C++ writes warnings to standard output for a clamp whose bounds have no float16."""
    half = str(tmp_path / "half")
    assert intaglio("compress", tiny_bundle, "-o", half, "--recipe", "float16")[0] == 0
    build = [sys.executable, "-P", "-m", "intaglio", "build", half, "--target", "tensorrt-rtx", "--gpu", "t4", "--json"]
    found = subprocess.run(build, capture_output=True, text=True, check=True)
    assert found.stderr == ""
    assert found.stdout.count("\n") == 1
    assert json.loads(found.stdout)["engines"][0]["sm"] == 75


def test_compress_reports_every_pass(intaglio: Run, tiny_bundle: Path, tmp_path: Path) -> None:
    code, out, _ = intaglio("compress", tiny_bundle, "-o", tmp_path / "half", "--recipe", "float16", "--json")
    result = json.loads(out)
    assert code == 0
    assert result.keys() >= {"bundle", "recipe", "passes", "bytes_before", "bytes_after"}
    assert all(record["counts"] or record["reasons"] for record in result["passes"])
    saved = result["bytes_before"] - result["bytes_after"]
    assert saved == pytest.approx(2 * Bundle.open(tiny_bundle).manifest.parameters, rel=0.02)
    assert intaglio("validate", tmp_path / "half", "--against", tiny_bundle)[0] == 0


def test_compress_calibrates_on_a_text_file(intaglio: Run, tiny_bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text("passes: [calibrate]")
    (tmp_path / "texts.txt").write_text("one\n\ntwo\n")
    arguments = ("compress", tiny_bundle, "-o", tmp_path / "out", "--recipe", tmp_path / "recipe.yaml", "--json")
    code, out, err = intaglio(*arguments, "--calibration", tmp_path / "texts.txt")
    assert (code, err) == (0, "")
    assert json.loads(out)["passes"][0]["counts"]["samples"] == 2
    assert json.loads((tmp_path / "out" / "bundle.json").read_text())["calibration"]["file"] == "texts.txt"


@pytest.mark.parametrize("verb", VERBS)
def test_help_shows_an_example(verb: str, intaglio: Run) -> None:
    code, out, _ = intaglio(verb, "--help")
    assert code == 0
    assert f"  intaglio {verb} " in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nonsense"], "No such command 'nonsense'"),
        (["export"], "Missing argument 'SOURCE'. See: intaglio export --help"),
        (["inspect", "/nowhere"], "no such directory"),
        (["run", "/nowhere", "text"], "no such directory"),
        (["validate", "/nowhere"], "no such directory"),
        (["build", "/nowhere", "--target", "ort-cpu"], "no such directory"),
        (["build", "/nowhere", "--target", "abacus"], "'abacus': expected one of ort-cpu"),
        (["build", "/nowhere", "--target", "tensorrt-rtx", "--axis", "frames"], "expected NAME=MIN:OPT:MAX"),
        (["compress", "/nowhere", "-o", "x", "--recipe", "canonical"], "no such directory"),
        (["compress", "/nowhere", "-o", "x", "--recipe", "float16", "--calibration", "y"], "no pass of recipe float16"),
        (["run", "/nowhere", "text", "--input", "/file"], "Use one of the two"),
        (["run", "/nowhere", "--input", "/no/file"], "No such file"),
        (["run", "/nowhere", "--batch-size", "many"], "Invalid value for '--batch-size'"),
    ],
)
def test_usage_error_prints_one_line_and_exits_with_code_2(arguments: list[str], message: str, intaglio: Run) -> None:
    code, out, err = intaglio(*arguments)
    assert (code, out) == (2, "")
    (line,) = err.strip().splitlines()
    assert line.startswith("intaglio: ")
    assert message in line


def test_errors_escape_control_characters_in_names_of_a_bundle(intaglio: Run, tiny_bundle_copy: Path) -> None:
    evil, model = "x\x1b[2J\x9b1m", tiny_bundle_copy / "model.onnx"
    parsed = onnx.load(model)
    parsed.graph.input[0].name = evil
    model.write_bytes(parsed.SerializeToString())
    manifest = json.loads((tiny_bundle_copy / "bundle.json").read_text())
    manifest["inputs"][0].update(name=evil, dtype="\x1b]0;title\x07")
    manifest["files"]["model.onnx"] = {"sha256": sha256(model), "bytes": model.stat().st_size}
    (tiny_bundle_copy / "bundle.json").write_text(json.dumps(manifest))
    code, out, err = intaglio("inspect", tiny_bundle_copy)
    assert (code, out) == (2, "")
    assert "has dtype" in err and err[:-1].isprintable()


def test_each_input_line_prints_one_object(intaglio: Run, tiny_bundle: Path) -> None:
    _, out, _ = intaglio("run", tiny_bundle, "--json", stdin="a\n\nb\n")
    assert [json.loads(line)["text"] for line in out.splitlines()] == ["a", "", "b"]


def test_output_that_was_not_compared_does_not_pass(intaglio: Run, tiny_bundle_copy: Path, tmp_path: Path) -> None:
    model = onnx.load(tiny_bundle_copy / "model.onnx")
    (pooled,) = (output for output in model.graph.output if output.name == "sentence_embedding")
    model.graph.output.remove(pooled)
    onnx.save(model, tmp_path / "encoder.onnx")
    intaglio("export", tmp_path / "encoder.onnx", "-o", tmp_path / "encoder")
    bounds = ["--max-abs", "1000", "--min-cosine", "-1"]
    code, out, _ = intaglio("validate", tiny_bundle_copy, "--against", tmp_path / "encoder", *bounds)
    assert code == 1
    assert "Not compared, because the other model does not have it: sentence_embedding" in out


def test_no_arguments_print_the_help(intaglio: Run) -> None:
    code, out, err = intaglio()
    assert (code, out) == (2, "")
    assert "\n  export " in err


@pytest.mark.parametrize(
    ("tail", "message"),
    [
        ("inspect {bundle} > /dev/full", "No space left on device"),
        ("run {bundle} <&-", "no text"),
        ("inspect {long}", "File name too long"),
        ("run {bundle} $'\\xff\\xfe'", "not Unicode"),
        ("run {bundle} --top 0 text", "top 0: expected at least 1"),
    ],
)
def test_broken_environment_prints_one_line(tail: str, message: str, tiny_bundle: Path) -> None:
    command = f"{sys.executable} -P -m intaglio " + tail.format(bundle=tiny_bundle, long="/x" + "y" * 300)
    found = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert found.returncode == 2
    (line,) = found.stderr.splitlines()
    assert message in line


def test_internal_error_prints_one_line_and_a_traceback_on_request(
    intaglio: Run, tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(path: Path) -> None:
        raise ZeroDivisionError("on purpose")

    monkeypatch.setattr("intaglio.bundle.inspection.load", broken)
    code, out, err = intaglio("inspect", tiny_bundle)
    assert (code, out) == (2, "")
    assert err == (
        "intaglio: ZeroDivisionError: on purpose. This is a bug in intaglio; INTAGLIO_TRACEBACK=1 shows where.\n"
    )
    monkeypatch.setenv("INTAGLIO_TRACEBACK", "1")
    monkeypatch.setattr(sys, "argv", ["intaglio", "inspect", str(tiny_bundle)])
    with pytest.raises(ZeroDivisionError):
        main()


WARNING = """
import sys, warnings
from intaglio.bundle import inspection
from intaglio.cli import main
real = inspection.load
def load(path):
    warnings.warn("mind\\nthis")
    warnings.warn("mind this")
    warnings.warn("\\x1b[2J")
    return real(path)
inspection.load = load
sys.argv = ["intaglio", "inspect", sys.argv[1]]
main()
"""


def test_warning_is_printed_once_in_one_line(tiny_bundle: Path) -> None:
    command = [sys.executable, "-P", "-c", WARNING, str(tiny_bundle)]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert found.stderr == "intaglio: warning: mind this\nintaglio: warning: \N{REPLACEMENT CHARACTER}[2J\n"
    assert found.stdout and all(line == line.rstrip() for line in found.stdout.splitlines())


def test_text_that_is_not_utf8_prints_one_line(intaglio: Run, tiny_bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "latin.txt").write_bytes("café".encode("latin-1"))
    code, out, err = intaglio("run", tiny_bundle, "--input", tmp_path / "latin.txt")
    assert (code, out) == (2, "")
    assert "not UTF-8" in err


def test_closed_pipe_prints_no_traceback(tiny_bundle: Path) -> None:
    command = f"yes text | head -2000 | {sys.executable} -P -m intaglio run {tiny_bundle} --json | head -1"
    found = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert found.stderr == ""
    assert json.loads(found.stdout)["text"] == "text"
