"""Output for people: tables as wide as the terminal, coloured verdicts, and plain lines in pipes."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from terminal import on_terminal, without_styles

from intaglio.cli.printing import results
from intaglio.cli.printing.table import lay_out
from intaglio.cli.run import _line
from intaglio.runtime.text.tasks import Ran

Run = Callable[..., tuple[int, str, str]]

VALIDATE = (
    ["output", "max |error|", "mean |error|", "relative", "cosine", "bound", "passed"],
    [
        ["last_hidden_state", "0.00402", "0.000244", "0.000645", "0.9999991", "≤ 0.005 of the largest", "yes"],
        ["sentence_embedding", "3.34e-06", "3.79e-05", "0.00118", "0.9999993", "≤ 0.005 of the largest", "no"],
    ],
)
INTAGLIO = ("-m", "intaglio")
VERDICT = "from intaglio.cli.printing.results import print_table; print_table('Title', ['a'], [[True]])"
# The table of the roofline from short measurements: their exactness does not matter to it.
ROOFLINE = """
import sys
from intaglio.cli import main
from intaglio.validation.roofline import roofline
roofline.SECONDS, roofline.SIDE = 0.01, 256
memory = roofline.Memory
roofline.Memory = lambda: memory(1 << 25)
sys.argv = ["intaglio", "roofline", *sys.argv[1:]]
main()
"""
DROP = ["mean |error|", "relative"]
REASON = "no Identity, nothing unused, and no node that depends on constants alone and could be folded"


def lines(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int | None, *drop: str) -> list[str]:
    return lay_out(columns, rows, width, drop)[0]


@pytest.mark.parametrize("width", [60, 70, 80, 100, 120])
def test_no_line_is_longer_than_the_terminal_and_no_number_is_split(width: int) -> None:
    shown = lines(*VALIDATE, width, *DROP, "bound")
    assert max(map(len, shown)) <= width
    for cell in ("0.00402", "3.34e-06", "0.9999991", "yes", "no", "last_hidden_state"):
        assert any(re.search(rf"(^|\s){re.escape(cell)}($|\s)", line) for line in shown)
    assert not any(line.endswith(" ") for line in shown)


# The columns of each table wider than 80 columns, its longest expected row, and the file with its optional columns.
WIDE = {
    "bench": (
        ["", "concurrency", "prompt tokens", "requests", "median ms", "p90 ms", "p99 ms", "first token ms", "token ms",
         "tokens per second", "ratio"],
        ["smollm2-int4", "8", "128", "16", "1.23e+03", "1.31e+03", "1.4e+03", "123", "14.2", "45.6", "1.21×"],
    ),
    "roofline": (
        ["tokens", "length", "bytes", "operations", "operations a byte", "bound by", "predicted ms", "measured ms",
         "ratio"],
        ["64", "1,024", "123.4 MB", "1.23e+09", "12.3", "memory, from cache", "12.3", "14.2", "0.87"],
    ),
    "tune": (
        ["operator", "bits", "bytes of x", "rows of x", "default", "default Gproducts/s", "best", "best Gproducts/s",
         "gain", "prefetch"],
        ["LutMatMul", "4", "float32", "16", "m_u=1 t_u=4", "12.3", "m_u=2 t_u=8", "14.5", "18%", "groups ≤64"],
    ),
    "tune_decoding": (
        ["strategy", "fallback", "rollback", "rouge_l", "ms per text", "speedup", "large calls", "rejected",
         "bytes per token", "operations per token", "operations per byte"],
        ["speculative", "0.5", "10", "12.34", "1.23e+03", "1.23", "123", "12", "12.3 MB", "1.2e+09", "12.3"],
    ),
    "export": (
        ["output", "max |error|", "bound", "cosine", "passed"],
        ["sentence_embedding", "3.34e-06", "3.79e-05", "0.9999993", "yes"],
    ),
    "gpu_check": (
        ["kernel", "bytes", "warm us", "cold us", "GB/s", "of a copy", "of cuBLAS"],
        ["int_layer_norm_residual_channels", "123.4 MB", "1.23e+03", "1.23e+03", "1.23e+03", "0.912", "0.123"],
    ),
    "printing/engines": (
        ["file", "target", "device", "SM", "size", "library", "plan"],
        ["engines/tensorrt-rtx-model-sm75-t4.engine", "tensorrt-rtx", "rtx-3090", "75", "50.2 MB",
         "tensorrt_rtx 1.7.1.116", "version-compatible, ampere+, no weights"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("verb", WIDE)
def test_every_table_fits_the_terminal(verb: str, width: int) -> None:
    """The optional columns are read from the source of the command."""
    source = (Path(results.__file__).parents[1] / f"{verb}.py").read_text()
    columns, row = WIDE[verb]
    assert all(name in source for name in columns if name not in ("tokens per second", "rouge_l"))
    listed = re.findall(r"(?:may_drop=|MAY_DROP = |rows, )\[([^\]]*)\]", source)
    dropped = [name for names in listed for name in re.findall(r'"([^"]+)"', names)]
    shown = lines(columns, [row], width, *dropped)
    assert max(map(len, shown)) <= width


def test_long_names_wrap_between_their_parts() -> None:
    columns, row = (
        ["pass", "rewritten", "left, and why"],
        ["quantize_activations", "8 × 8-bit activations", "x.wte.weight"],
    )
    rows = [row, ["integer_embedding", "1 table", "transformer.wte.weight is used by Transpose too"]]
    shown = lines(columns, rows, 60)
    assert max(map(len, shown)) <= 60
    assert any(line.split()[-1] == "transformer.wte." for line in shown)


def test_columns_are_omitted_in_the_given_order_only_as_needed() -> None:
    assert lay_out(*VALIDATE, 120, DROP)[1] == []
    assert lay_out(*VALIDATE, 80, DROP)[1] == ["mean |error|"]
    assert lay_out(*VALIDATE, 70, DROP)[1] == ["mean |error|", "relative"]
    assert lay_out(*VALIDATE, 20, DROP)[1] == DROP  # others are shown even if they are too wide


def test_comparison_sign_stays_with_its_number() -> None:
    assert any("≤ 0.005" in line for line in lines(*VALIDATE, 80, *DROP))
    assert not any(line.rstrip().endswith("≤") for line in lines(*VALIDATE, 80, *DROP))


def test_sentences_wrap_between_words_and_paths_between_their_parts() -> None:
    path = "engines/of/several/folders/here/tensorrt-rtx-a100.engine"
    shown = lines(["pass", "left, and why"], [["fold_constants", REASON], ["x", path]], 50)
    assert max(map(len, shown)) <= 50
    first = next(number for number, line in enumerate(shown) if line.startswith("  x "))
    assert " ".join(" ".join(line[19:] for line in shown[2:first]).split()) == REASON
    assert "".join(line[19:] for line in shown[first:]) == path
    assert all(line.endswith("/") for line in shown[first:-1])


def test_paths_wrap_only_after_other_columns_wrap_or_are_omitted() -> None:
    path, library = "engines/tensorrt-rtx-a100.engine", "tensorrt_rtx 1.7.1.116"
    columns, rows = ["file", "target", "size", "library"], [[path, "tensorrt-rtx", "50.0 MB", library]]
    assert lines(columns, rows, 80, "target")[2].split() == [path, "tensorrt-rtx", "50.0", "MB", "tensorrt_rtx"]
    assert lines(columns, rows, 66, "target")[2].split() == [path, "50.0", "MB", "tensorrt_rtx"]
    assert lines(columns, rows, 58, "target")[2].split() == ["engines/", "50.0", "MB", "tensorrt_rtx"]


def test_only_cosines_show_the_digits_after_their_nines() -> None:
    assert results.shown(0.99999912, cosine=True) == "0.9999991"
    assert results.shown(1.0) == "1"
    assert results.shown(None) == ""


def test_wide_characters_take_two_columns() -> None:
    shown = lines(["word", "number"], [["日本語", "1"], ["abc", "2"]], 80)
    assert shown[2].index("1") == shown[3].index("2") - 3


def test_narrow_table_is_as_wide_as_its_cells() -> None:
    assert lines(["", "loss"], [["before", "1"], ["after", "12"]], 80)[1] == " " + 15 * "─"


def test_table_row_in_a_pipe_is_one_line() -> None:
    shown = lines(["pass", "left, and why"], [["fold", f"{REASON}\n{REASON}"]], None)
    assert shown[2] == f"  fold   {REASON}; {REASON}"


def test_tables_escape_control_characters_of_a_bundle(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    results.print_table("Title", ["a"], [["\x1b]0;owned\x07"]])
    shown = capsys.readouterr().out
    assert "owned" in shown
    assert "\x1b" not in shown and "\x07" not in shown


@pytest.mark.parametrize(
    ("number", "things", "expected"),
    [
        (1, "files", "1 file"),
        (2, "files", "2 files"),
        (1200, "weights removed", "1,200 weights removed"),
        (1, "weights removed", "1 weight removed"),
        (1, "identities", "1 identity"),
        (1, "linear", "1 linear"),
        (3, "16-bit activations", "3 × 16-bit activations"),
    ],
)
def test_count_of_one_is_singular(number: int, things: str, expected: str) -> None:
    assert results.number_of(number, things) == expected


def test_table_fits_80_columns_on_a_real_terminal(tiny_bundle_copy: Path, tmp_path: Path, intaglio: Run) -> None:
    intaglio("build", tiny_bundle_copy, "--target", "ort-cpu")
    shown = without_styles(on_terminal(*INTAGLIO, "inspect", tiny_bundle_copy, columns=80))
    assert max(map(len, shown.splitlines()[:-1])) <= 80  # the last line is a sentence with the bundle's path
    assert re.search(r"model.onnx +[\d.]+ kB +[0-9a-f]{12}…\n", shown)
    assert shown.endswith("B\n")
    command = ("compress", tiny_bundle_copy, "-o", tmp_path / "half", "--recipe", "float16", "--verbose")
    shown = without_styles(on_terminal(*INTAGLIO, *command, columns=80))
    assert max(map(len, shown.splitlines()[:-1])) <= 80
    assert "constants alone and could be folded" in " ".join(shown.split())


def test_wide_table_names_the_omitted_columns(tiny_decoder: Path) -> None:
    options = ("--tokens", "1", "--length", "32", "--threads", "1")
    shown = without_styles(on_terminal("-c", ROOFLINE, tiny_decoder, *options, columns=80))
    assert max(map(len, shown.splitlines())) <= 80
    assert "left out to fit: operations" in shown
    assert "ratio" in shown


def test_hashes_are_shown_in_full_on_request(tiny_bundle: Path, intaglio: Run) -> None:
    assert re.search(r"model.onnx .* [0-9a-f]{64}\n", intaglio("inspect", tiny_bundle, "--hashes")[1])


def test_caches_of_all_layers_are_one_line(tiny_decoder: Path, intaglio: Run) -> None:
    shown = intaglio("inspect", tiny_decoder)[1]
    assert "past_key_0 … past_value_1 (4)  float32 [batch, " in shown
    assert "input          input_ids  int64 [batch, tokens]\n" in shown


@pytest.mark.parametrize(
    ("environment", "styles"),
    [
        ({}, True),
        ({"NO_COLOR": "1"}, False),
        ({"NO_COLOR": ""}, True),
        ({"NO_COLOR": "1", "FORCE_COLOR": "1"}, False),
        ({"TERM": "dumb"}, False),
        ({"TERM": "dumb", "FORCE_COLOR": "1"}, True),
    ],
)
def test_environment_variables_control_colours_and_bold(environment: dict[str, str], styles: bool) -> None:
    shown = on_terminal("-c", VERDICT, environment=environment)
    assert without_styles(shown) == "Title\n\n  a\n ─────\n  yes\n\n"
    assert ("\x1b[" in shown) == styles


@pytest.mark.proof
def test_output_in_a_pipe_has_no_styles_and_no_wrapped_rows_unless_forced(
    tiny_bundle: Path, tmp_path: Path, intaglio: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["compress", str(tiny_bundle), "--recipe", "float16", "-vo"]
    environment = {"PATH": "/usr/bin:/bin", "COLUMNS": "40", "PYTHONPATH": ":".join(sys.path)}
    plain = subprocess.run(
        [sys.executable, "-P", "-m", "intaglio", *command, "one"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert "\x1b" not in plain
    assert all(line == line.rstrip() for line in plain.splitlines())
    assert max(map(len, plain.splitlines())) > 100
    assert "gelu: no Erf or Tanh node in the graph; layer_norm:" in plain
    for name, value in {"COLUMNS": "40", "FORCE_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    forced = intaglio(*command, "two")[1]  # in this process, whose output is no terminal either
    assert forced.startswith("\x1b[1mRecipe float16\x1b[0m\n")
    assert without_styles(forced).replace("two", "one") == plain


def test_failures_are_red_and_successes_green(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    results.print_table("Title", ["output", "passed"], [["good", True], ["bad", False]])
    results.say(f"{results.verdict(True)} {results.verdict(False)}")
    shown = capsys.readouterr().out.splitlines()
    assert shown[4] == "  good        \x1b[32myes\x1b[0m"
    assert shown[5] == "  bad          \x1b[1;31mno\x1b[0m"
    assert shown[-1] == "\x1b[32mPassed\x1b[0m \x1b[31m\x1b[1mFAILED\x1b[0m"


def test_inspect_escapes_control_characters_in_labels() -> None:
    evil = "\x1b[2J\x9b1mcalm"
    line = _line(Ran("text", label=evil, scores={evil: 1.0}))
    assert line.isprintable()
    assert line.count("calm") == 2
