"""Output fits one screen: one row for all caches, only effective passes; -q shows results and errors, -v everything."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from intaglio.cli import _Warnings
from intaglio.cli.printing import results
from intaglio.cli.printing.printable import wrapped
from intaglio.cli.printing.rows import summed_up
from intaglio.cli.validate import _show_outputs
from intaglio.display import verbosity
from intaglio.display.progress import step, track
from intaglio.display.verbosity import Verbosity, set_verbosity
from intaglio.validation.reports.results import OutputError, Validated

Run = Callable[..., tuple[int, str, str]]


def error(max_abs: float, passed: bool = True, broken: list[str] | None = None) -> OutputError:
    bound = "≤ 2e-05 of the largest"
    measured = (max_abs, max_abs / 9, 0.999999, max_abs / 3)
    return OutputError(*measured, passed, bound, "order", 1.0, 0.999, broken or [], 10, 3, 0, 0, [])


CACHES = {f"present.{layer}.{half}": error(layer / 1e6) for layer in range(30) for half in ("key", "value")}
OUTPUTS = {"logits": error(1e-3), **CACHES}


def test_all_caches_are_one_row_with_the_largest_error() -> None:
    (first, _), (name, worst) = summed_up(OUTPUTS)
    assert (first, name) == ("logits", "present* (worst of 60: present.29.key)")
    assert worst.max_abs == pytest.approx(29e-6)


@pytest.mark.parametrize("bad", [error(0.0, passed=False), error(float("nan"), passed=False)])
def test_failed_cache_is_shown_regardless_of_its_error(bad: OutputError) -> None:
    rows = dict(summed_up({**OUTPUTS, "present.3.value": bad}))
    assert rows["present* (worst of 60: present.3.value)"] is bad


def test_caches_are_grouped_and_other_outputs_are_not() -> None:
    names = [f"present_{half}_{layer}" for half in ("key", "value") for layer in range(3)] + ["logits", "present", "x1"]
    rows = [name for name, _ in summed_up({name: error(1.0) for name in names})]
    assert rows == ["present* (worst of 6: present_key_0)", "logits", "present", "x1"]


def test_nan_is_worse_than_any_error() -> None:
    rows = list(summed_up({f"y{place}": error(value) for place, value in enumerate((1.0, float("nan"), 9.0, 2.0))}))
    assert [name for name, _ in rows] == ["y* (worst of 4: y1)"]


def test_few_outputs_or_verbose_show_a_row_per_output() -> None:
    few = {name: OUTPUTS[name] for name in ("logits", "present.0.key", "present.0.value")}
    assert [name for name, _ in summed_up(few)] == list(few)
    set_verbosity(Verbosity.VERBOSE)
    assert [name for name, _ in summed_up(OUTPUTS)] == list(OUTPUTS)


@pytest.mark.parametrize("width", [None, 60, 80, 120])
def test_outputs_of_a_large_decoder_fit_a_screen(
    width: int | None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "terminal_width", lambda: width)
    broken = [f"output present.{layer}.key: error 1e-2, expected at most 1e-5" for layer in range(30)]
    outputs = {**OUTPUTS, **{f"present.{n}.key": error(0.01, False, [text]) for n, text in enumerate(broken)}}
    _show_outputs(Validated(passed=False, outputs=outputs, report="r"), "bundle on ort-cpu against pytorch", False)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 24
    assert "27 more, which --verbose shows." in lines
    assert any(line.split()[0] == "logits" and line.endswith("yes") for line in lines if line.strip())
    if width is not None:
        table = lines[: lines.index("")] + [line for line in lines if line.startswith("  ")]
        assert max(map(len, table)) <= width
    set_verbosity(Verbosity.VERBOSE)
    _show_outputs(Validated(passed=False, outputs=outputs, report="r"), "title", False)
    shown = capsys.readouterr().out
    assert all(text[1:] in shown for text in broken) and "present.7.value" in shown


def test_compress_hides_passes_without_effect(intaglio: Run, tiny_bundle: Path, tmp_path: Path) -> None:
    arguments = ("compress", tiny_bundle, "-o", tmp_path / "half", "--recipe", "float16", "--force")
    code, usual, err = intaglio(*arguments)
    assert (code, err) == (0, "")
    assert "  float16 " in usual and "  fold_batch_norm " not in usual
    assert "Found nothing to do: " in usual and "fold_batch_norm" in usual
    _, everything, times = intaglio(*arguments, "--verbose")
    assert "  fold_batch_norm " in everything and "Found nothing to do" not in everything
    assert all(f"{name}: " in times for name in ("reading", "float16", "writing")) and "compress, in all: " in times
    assert all(line.endswith(" s") for line in times.splitlines())
    code, result, err = intaglio(*arguments, "-q")
    assert (code, err, result.count("\n")) == (0, "", 1)
    assert result.startswith(f"{tmp_path / 'half'}: ") and result == usual.splitlines(keepends=True)[-1]
    machine = json.loads(intaglio(*arguments, "--json", "-q")[1])
    assert [each["name"] for each in machine["passes"]][-1] == "float16" and len(machine["passes"]) > 5


def test_compress_hides_passes_that_other_models_need(intaglio: Run, tiny_bundle: Path, tmp_path: Path) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("one text\nanother text\n")
    arguments = ("compress", tiny_bundle, "-o", tmp_path / "int8", "--recipe", "int8-only", "--calibration", texts)
    _, out, _ = intaglio(*arguments)
    assert (
        "  integer_linear " in out and "  integer_softmax " not in out and " nothing" not in out.partition("Found")[0]
    )
    assert "integer_softmax" in out.partition("Found nothing to do: ")[2]


def test_requested_pass_without_effect_is_shown_with_its_reasons(
    intaglio: Run, make_decoder: Callable[..., tuple[Path, Path]], tmp_path: Path
) -> None:
    (tmp_path / "recipe.yaml").write_text("passes: [canonicalize, {rtn: {skip: ['*']}}]")
    bundle = make_decoder("gpt2")[1]
    _, out, _ = intaglio("compress", bundle, "-o", tmp_path / "out", "--recipe", tmp_path / "recipe.yaml")
    assert "  rtn " in out and "skip" in out and "Found nothing to do: canonicalize" in out


def test_quiet_shows_the_verdict_and_verbose_every_step(intaglio: Run, tiny_bundle_copy: Path, tmp_path: Path) -> None:
    arguments = ("validate", tiny_bundle_copy, "--against", "reference", "--samples", "2", "--report", tmp_path)
    code, out, err = intaglio(*arguments, "--quiet")
    assert (code, err) == (0, "") and out.startswith("Passed. Report: ") and out.count("\n") == 1
    assert "intaglio validate, in all: " in intaglio(*arguments, "-v")[2]
    code, out, _ = intaglio(*arguments, "-q", "--max-abs", "0")
    assert code == 1 and out.startswith("FAILED. Report: ")


def test_last_of_quiet_and_verbose_wins_for_one_command(intaglio: Run, tiny_bundle: Path) -> None:
    assert "in all" in intaglio("inspect", tiny_bundle, "-q", "-v")[2]
    assert intaglio("inspect", tiny_bundle, "-v", "-q")[2] == ""
    assert intaglio("inspect", tiny_bundle)[2] == ""


def test_quiet_hides_notices_and_warnings(capsys: pytest.CaptureFixture[str]) -> None:
    set_verbosity(Verbosity.QUIET)
    results.notice("nobody reads this")
    _Warnings().show(UserWarning("nor this"), UserWarning, "file", 1)
    with step("nor that"):
        assert list(track([1, 2], "nor these")) == [1, 2]
    assert capsys.readouterr() == ("", "")
    set_verbosity(Verbosity.NORMAL)
    results.notice("seen")
    with warnings.catch_warnings():
        _Warnings().show(UserWarning("seen too"), UserWarning, "file", 1)
    assert capsys.readouterr().err == "seen\nintaglio: warning: seen too\n"


def test_failed_step_shows_its_duration(capsys: pytest.CaptureFixture[str]) -> None:
    set_verbosity(Verbosity.VERBOSE)
    with pytest.raises(ZeroDivisionError), verbosity.timed("dividing"):
        1 / 0  # noqa: B018
    assert capsys.readouterr().err.startswith("dividing: 0.0")


def test_long_lines_wrap_between_words_and_paths_stay_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal:
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("COLUMNS", "40")
    path = "/a/very/long/path/of/a/report/that/no/terminal/shows/in/one.html"
    shown = results._fitting(f"FAILED, and the report is the file {path}, which has everything in it", Terminal())  # type: ignore[arg-type]
    assert path + "," in shown.split("\n")
    assert " ".join(shown.split()) == f"FAILED, and the report is the file {path}, which has everything in it"
    assert all(len(line) <= 40 for line in shown.split("\n") if "/" not in line)


def test_wide_characters_count_as_two_columns() -> None:
    assert wrapped("模型 模型 model", 10) == "模型 模型\nmodel"
    assert wrapped("at most ≤ 3, or more", 10) == "at most\n≤ 3, or\nmore"
    assert wrapped("  indented", 10) == "  indented"
