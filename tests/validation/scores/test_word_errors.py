"""Word error rates: normalisation of texts, counts, and verdicts."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jiwer
import pytest
from speech_bundles import RECORDINGS, export_recogniser

from intaglio.bundle.bundle import Bundle
from intaglio.errors import MissingExtraError, UsageError
from intaglio.runtime.speech.beam_search import CtcBeamOptions
from intaglio.runtime.speech.recognizer import SpeechOptions, SpeechRecognizer
from intaglio.validation import validate
from intaglio.validation.scores.word_errors import normalised, word_errors

Run = Callable[..., tuple[int, str, str]]
NAMES = ["sentence-2.flac", "sentence-5.flac"]


@pytest.fixture(scope="module")
def transcripts(recogniser: Path) -> list[str]:
    """The transcripts of the small recogniser for `NAMES`."""
    with SpeechRecognizer(Bundle.open(recogniser)) as opened:
        return [opened.transcribe(RECORDINGS / name).text for name in NAMES]


@pytest.fixture
def listed(tmp_path: Path) -> Callable[..., Path]:
    """A function that writes a list of `NAMES` with these texts, beside copies of the recordings."""

    def write(*texts: str | None) -> Path:
        for name in NAMES:
            shutil.copy(RECORDINGS / name, tmp_path / name)
        path = tmp_path / "list.tsv"
        lines = [name if text is None else f"{name}\t{text}" for name, text in zip(NAMES, texts, strict=False)]
        path.write_text("\n".join(lines), encoding="utf-8")
        return path

    return write


@pytest.fixture
def copy(recogniser: Path, tmp_path: Path) -> Path:
    """The small recogniser, into which reports are written."""
    return Path(shutil.copytree(recogniser, tmp_path / "recogniser"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Don’t stop -- it's 5 o'clock!", "don't stop it's 5 o'clock"),
        ("«Ça va?» ÉTÉ", "ça va été"),
        ("E\u0301te\u0301", "été"),  # composed
        ("well-known  e.g. $5", "well known e g 5"),
        ("t͡ʃɪp ˈlaːst", "t͡ʃɪp ˈlaːst"),  # phonemes keep their marks
        ("ΟΔΟΣ हिन्दी", "οδος हिन्दी"),
        (" ... ", ""),
    ],
)
def test_comparison_ignores_case_and_punctuation(text: str, expected: str) -> None:
    assert normalised(text) == expected


def test_case_and_punctuation_give_no_errors(
    recogniser: Path, transcripts: list[str], listed: Callable[..., Path]
) -> None:
    found = word_errors(Bundle.open(recogniser), listed(*(f"{text.upper()}!" for text in transcripts)))
    assert (found.actual.wer, found.actual.cer, found.actual.worst) == (0.0, 0.0, [])
    assert found.words == sum(len(text.split()) for text in transcripts) > 10
    assert found.actual.real_time_factor > 0


def test_each_kind_of_error_is_counted(recogniser: Path, transcripts: list[str], listed: Callable[..., Path]) -> None:
    first, second = (text.split() for text in transcripts)
    texts = [" ".join(["hello", *first[1:], "left", "out"]), " ".join(second[1:])]
    found = word_errors(Bundle.open(recogniser), listed(*texts)).actual
    assert (found.substitutions, found.deletions, found.insertions) == (1, 2, 1)
    assert [(Path(each.recording).name, each.errors, each.words) for each in found.worst] == [
        (NAMES[0], 3, len(first) + 2),
        (NAMES[1], 1, len(second) - 1),
    ]
    assert (found.worst[0].text, found.worst[0].transcript) == (texts[0], transcripts[0])


def test_rates_over_the_list_equal_jiwer(recogniser: Path, transcripts: list[str], listed: Callable[..., Path]) -> None:
    texts = ["a short one", f"{transcripts[1].split()[0]} two"]
    found = word_errors(Bundle.open(recogniser), listed(*texts)).actual
    assert found.wer == pytest.approx(100 * jiwer.wer(texts, transcripts))
    assert found.cer == pytest.approx(100 * jiwer.cer(texts, transcripts))
    assert found.wer > 100  # more inserted words than reference words


def test_silence_may_have_an_empty_reference(
    recogniser: Path, transcripts: list[str], listed: Callable[..., Path]
) -> None:
    found = word_errors(Bundle.open(recogniser), listed("", transcripts[1]))
    assert found.actual.insertions == len(transcripts[0].split())
    assert found.words == len(transcripts[1].split())


def test_both_models_decode_with_the_given_options(
    recogniser: Path, transcripts: list[str], listed: Callable[..., Path], tmp_path: Path
) -> None:
    options = SpeechOptions(beam=CtcBeamOptions(width=8))
    with SpeechRecognizer(Bundle.open(recogniser), options=options) as opened:
        searched = [opened.transcribe(RECORDINGS / name).text for name in NAMES]
    assert searched != transcripts
    found = validate(recogniser, wer=listed(*searched), against=recogniser, beam=8, report=tmp_path / "reports")
    assert (found.wer, found.against_wer) == (0.0, 0.0)


def test_validate_reports_word_errors(
    intaglio: Run, copy: Path, transcripts: list[str], listed: Callable[..., Path], tmp_path: Path
) -> None:
    path = listed(f"<b> {transcripts[0]}", transcripts[1])
    code, out, err = intaglio("validate", copy, "--wer", path, "--json")
    result = json.loads(out)
    assert (code, err, result["passed"], result["judged"], result["measures"]) == (0, "", True, False, [])
    words = 1 + sum(len(text.split()) for text in transcripts)
    assert (result["words"], result["deletions"], result["wer"]) == (words, 1, pytest.approx(100 / words))
    assert (result["recordings"], result["against_wer"]) == (2, None)
    assert "perplexity" not in result
    report = Path(result["report"])
    assert report.parent == copy / "reports"
    page = report.read_text(encoding="utf-8")
    assert f"word error rate {result['wer']:.2f} % of {words} words" in page
    assert "MEASURED" in page
    assert json.loads(report.with_suffix(".json").read_text())["word_errors"]["actual"]["deletions"] == 1
    assert Bundle.open(copy)  # the report is one of its files
    _, out, _ = intaglio("validate", copy, "--wer", path, "--report", tmp_path / "elsewhere")
    assert f"{result['wer']:.2f} % (0 substituted, 1 deleted, 0 inserted)" in out
    assert "Measured, not judged" in out


def test_maximum_error_rate_alone_determines_the_verdict(
    intaglio: Run, copy: Path, transcripts: list[str], listed: Callable[..., Path]
) -> None:
    path = listed(f"one {transcripts[0]}", transcripts[1])
    codes = [
        intaglio("validate", copy, "--wer", path, "--bound", bound)[0] for bound in ("wer=50", "wer=0.5", "cer=0.1")
    ]
    assert codes == [0, 1, 1]


def test_rise_above_another_model_is_judged(
    intaglio: Run, copy: Path, transcripts: list[str], listed: Callable[..., Path], tmp_path: Path
) -> None:
    other = export_recogniser(tmp_path / "other", seed=6)
    path = listed(*transcripts)
    worse = intaglio("validate", other, "--wer", path, "--against", copy, "--json")
    result = json.loads(worse[1])
    assert (worse[0], result["passed"], result["against_wer"]) == (1, False, 0.0)
    [rise] = result["measures"]
    assert (rise["name"], rise["value"], rise["bound"]) == ("wer_rise", result["wer"], 2.0)
    assert "another checkpoint" in result["changes"]
    given = intaglio("validate", other, "--wer", path, "--against", copy, "--bound", "wer_rise=400")
    assert given[0] == 0
    assert "Passed" in given[1]
    better = json.loads(intaglio("validate", copy, "--wer", path, "--against", other, "--json")[1])
    assert (better["passed"], better["measures"][0]["value"]) == (True, -better["against_wer"])
    page = Path(better["report"]).read_text(encoding="utf-8")
    assert "the other model" in page


@pytest.mark.parametrize(
    ("texts", "options", "message"),
    [
        (("a b", None), {}, "recording 2, sentence-5.flac, has no text. Add its transcript"),
        (("", " ?"), {}, "its texts have no words"),
        ((), {}, "has no lines"),
        (("a",), {"against": "pytorch"}, "--against pytorch cannot transcribe"),
        (("a",), {"bound": {"kl_divergence": 1}}, "expected one of wer, cer"),
        (("a",), {"bound": {"wer_rise": 1}}, "expected one of wer, cer"),
        (("a",), {"bisect": True, "context": 3}, "--wer transcribes recordings: leave out --bisect, --context"),
    ],
)
def test_unmeasurable_inputs_are_refused(
    texts: tuple[str | None, ...], options: dict[str, Any], message: str, copy: Path, listed: Callable[..., Path]
) -> None:
    with pytest.raises(UsageError) as refused:
        validate(copy, wer=listed(*texts), **options)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not (copy / "reports").exists()


def test_single_recording_is_not_a_list(recogniser: Path) -> None:
    with pytest.raises(UsageError, match=r"expected a list, \.tsv"):
        word_errors(Bundle.open(recogniser), RECORDINGS / NAMES[0])


def test_text_bundle_cannot_transcribe(
    make_bundle: Callable[..., Path], chain: Any, listed: Callable[..., Path], tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="does not take recordings"):
        validate(make_bundle(chain(1)), wer=listed("a"), report=tmp_path / "reports")


def test_missing_jiwer_names_the_extra(
    recogniser: Path, listed: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jiwer", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'intaglio\[quality\]'"):
        word_errors(Bundle.open(recogniser), listed("a"))


def test_json_list_is_supported(recogniser: Path, transcripts: list[str], listed: Callable[..., Path]) -> None:
    path = listed("a").with_name("list.jsonl")
    rows = [{"audio_filepath": name, "text": text} for name, text in zip(NAMES, transcripts, strict=True)]
    path.write_text("\n".join(map(json.dumps, rows)))
    assert word_errors(Bundle.open(recogniser), path).actual.wer == 0
