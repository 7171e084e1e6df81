"""Tuning: the fastest measured setting within the allowed degradation is chosen."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest

from intaglio.errors import UsageError
from intaglio.runtime.generation.generate import generate
from intaglio.validation.tuning.picture import picture
from intaglio.validation.tuning.tune_decoding import TunedDecoding, fastest, tune_decoding


@pytest.fixture(scope="module")
def data(language_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    held_out = (language_models / "held_out.txt").read_text(encoding="utf-8")
    path = tmp_path_factory.mktemp("data") / "prompts.jsonl"
    prompts = [held_out[start : start + 120] for start in range(0, 60_000, 10_000)]
    path.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def tuned(trained_pair: tuple[Path, Path], data: Path) -> TunedDecoding:
    draft, target = trained_pair
    return tune_decoding(
        target,
        draft,
        data,
        5.0,
        fallbacks=[0.3, 0.9],
        rollbacks=[0.0, 4.0],
        max_new_tokens=24,
        max_samples=4,
        threads=1,
    )


def test_every_setting_is_run_and_compared_with_greedy_decoding(tuned: TunedDecoding) -> None:
    assert [(each.strategy, each.fallback, each.rollback) for each in tuned.settings] == [
        ("greedy", None, None),
        ("speculative", None, None),
        *(("bild", fallback, rollback) for fallback in (0.3, 0.9) for rollback in (0.0, 4.0)),
    ]
    plain, speculative, *bild = tuned.settings
    assert (plain.speedup, plain.large_calls, plain.small_calls) == (1.0, 1.0, 0.0)
    assert plain.quality.bleu == speculative.quality.bleu == pytest.approx(100)  # exact for any draft model
    assert tuned.reference == "the large model"
    assert all(each.quality.bleu == pytest.approx(100) for each in bild if each.rollback == 0)
    assert bild[1].large_calls < bild[0].large_calls


def test_fastest_setting_within_the_allowed_degradation_is_chosen(tuned: TunedDecoding) -> None:
    plain = tuned.settings[0]
    settings = [
        msgspec.structs.replace(plain, seconds=seconds, quality=msgspec.structs.replace(plain.quality, bleu=bleu))
        for seconds, bleu in ((3.0, 90.0), (1.0, 88.9), (2.0, 89.0), (2.5, 95.0), (2.2, 90.0))
    ]
    assert [fastest(settings, "bleu", loss).seconds for loss in (0.0, 1.0, 2.0)] == [2.2, 2.0, 1.0]
    assert tuned.best == fastest(tuned.settings, "bleu", tuned.loss)
    assert tuned.options.startswith(f"--strategy {tuned.best.strategy}")
    assert tuned.options.endswith("--threads 1")  # as in the measurement


def test_drafting_needs_fewer_bytes_and_more_operations(tuned: TunedDecoding) -> None:
    plain, speculative = tuned.settings[:2]
    assert speculative.work.bytes < plain.work.bytes
    assert speculative.work.operations > plain.work.operations
    assert speculative.work.intensity > plain.work.intensity


def test_early_exit_is_tuned_like_a_draft_model(
    exiting: Path, data: Path, intaglio: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    arguments = ["--data", data, "--max-samples", "2", "-n", "12", "--fallback", "0.3", "--rollback", "0", "--json"]
    code, out, _ = intaglio("tune-decoding", exiting, "--early-exit", *arguments, "--picture", tmp_path / "curve.svg")
    result = json.loads(out)
    assert code == 0 and result["draft"] is None
    assert [each["strategy"] for each in result["settings"]] == ["greedy", "speculative", "bild"]
    assert result["settings"][2]["quality"]["bleu"] == pytest.approx(100)
    assert "its early exit" in (tmp_path / "curve.svg").read_text(encoding="utf-8")
    for options in ([], ["--early-exit", "--draft", exiting]):
        code, _, err = intaglio("tune-decoding", exiting, *options, *arguments)
        assert code == 2 and "Give either --draft BUNDLE or --early-exit" in err


def test_plot_shows_every_setting(tuned: TunedDecoding) -> None:
    drawn = picture(tuned)
    ElementTree.fromstring(drawn)  # noqa: S314  our own
    assert drawn.count("<circle") >= 5
    assert "one point below" in drawn


def test_references_of_the_file_determine_the_score(
    trained_pair: tuple[Path, Path], tmp_path: Path, intaglio: Callable[..., tuple[int, str, str]]
) -> None:
    draft, target = trained_pair
    (written,) = generate(draft, "The import statement", max_new_tokens=16)
    path = tmp_path / "data.jsonl"
    path.write_text(json.dumps({"prompt": "The import statement", "reference": written.text}) + "\n")
    arguments = ["--draft", draft, "--data", path, "-n", "16", "--fallback", "0", "--rollback", "inf", "--json"]
    code, out, _ = intaglio("tune-decoding", target, *arguments)
    result = json.loads(out)
    assert code == 0
    assert result["reference"] == "the file"
    plain, *others = result["settings"]
    assert others[-1]["quality"]["bleu"] > plain["quality"]["bleu"]
    good = [each for each in result["settings"] if each["quality"]["bleu"] >= plain["quality"]["bleu"]]
    assert result["best"] == min(good, key=lambda each: each["seconds"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"metric": "taste"}, "metric 'taste'"),
        ({"max_samples": 0}, "max samples 0: expected at least 1"),
        ({"max_quality_drop": -1.0}, "max quality drop -1"),
        ({"fallbacks": []}, "no thresholds"),
        ({"fallbacks": [1.5]}, "fallback 1.5"),
        ({"data": "missing.jsonl"}, "--data"),
        ({"max_draft": 1000}, "max draft 1000: expected less than"),
        ({"max_draft": 5000}, "max draft 5000: expected 1 to 1024"),
    ],
)
def test_errors_are_reported_before_any_run(
    options: dict[str, Any], message: str, trained_pair: tuple[Path, Path], data: Path
) -> None:
    draft, target = trained_pair
    with pytest.raises(UsageError, match=message):
        tune_decoding(target, draft, **{"data": data, **options})


def test_too_long_prompt_is_named_before_any_text_is_generated(trained_pair: tuple[Path, Path], tmp_path: Path) -> None:
    draft, target = trained_pair
    long = tmp_path / "long.jsonl"
    long.write_text(f'{{"prompt": "a"}}\n{{"prompt": "{"word " * 2000}"}}\n')
    with pytest.raises(UsageError, match=rf"--data {re.escape(str(long))}, text 2: prompt of \d+ tokens"):
        tune_decoding(target, draft, long)


@pytest.mark.proof
def test_existing_plot_is_refused_before_any_run(
    trained_pair: tuple[Path, Path], data: Path, tmp_path: Path, intaglio: Callable[..., tuple[int, str, str]]
) -> None:
    path = tmp_path / "curve.svg"
    path.write_text("mine")
    arguments = ("tune-decoding", trained_pair[1], "--draft", trained_pair[0], "--data", data, "--picture", path)
    code, out, err = intaglio(*arguments)
    assert (code, out) == (2, "")
    assert err == f"intaglio: --picture {path}: exists already. Add --force to replace it, or choose another path.\n"
    few = ("--force", "--max-samples", 1, "-n", 2, "--fallback", 0.5, "--rollback", 1)
    assert intaglio(*arguments, *few)[0] == 0
    assert path.read_text().startswith("<svg")
