"""Perplexity: equal to a plain torch computation, each token scored once; unsupported inputs are refused."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from intaglio.bundle.bundle import Bundle
from intaglio.errors import BundleError, UsageError
from intaglio.graph_passes import compress
from intaglio.runtime.text.tokenizer import read_backend
from intaglio.validation import validate
from intaglio.validation.measures import distributions
from intaglio.validation.measures.distributions import log_softmax
from intaglio.validation.scores import window_scores
from intaglio.validation.scores.perplexity import perplexity
from intaglio.validation.scores.window_scores import Window, windows

Make = Callable[..., tuple[Path, Path]]
Run = Callable[..., tuple[int, str, str]]
TEXT = "The quick brown fox jumps over the lazy dog; it does so in Zürich, too.\n" * 2


@given(st.integers(2, 300), st.integers(2, 80), st.data())
def test_windows_score_each_token_once_with_enough_context(tokens: int, context: int, data: st.DataObject) -> None:
    stride = data.draw(st.integers(1, context - 1))
    found = list(windows(tokens, context, stride))
    assert [place for window in found for place in range(window.first, window.stop)] == list(range(1, tokens))
    for window in found:
        assert window.stop - window.start <= context
        assert window.first - window.start >= (1 if window.start == 0 else context - stride)
        assert window.start < window.first


def test_windows_equal_the_standard_loop() -> None:
    assert list(windows(10, 6, 3)) == [Window(0, 1, 6), Window(3, 6, 9), Window(6, 9, 10)]


def test_log_probabilities_of_large_logits_sum_to_one() -> None:
    found = log_softmax(np.array([[1e30, 0.0], [-2000.0, -2000.0]], np.float32))
    np.testing.assert_allclose(found, [[0.0, -1e30], [-math.log(2)] * 2], rtol=1e-6)


def torch_metrics(checkpoints: list[Path], tokens: list[int], context: int, stride: int) -> tuple[list[float], float]:
    """The perplexity of each checkpoint, and the mean KL divergence of the first from the second, by transformers."""
    import torch
    import transformers

    models = [transformers.AutoModelForCausalLM.from_pretrained(path) for path in checkpoints]
    losses: list[list[torch.Tensor]] = [[] for _ in models]
    divergences = []
    before = 0
    for begin in range(0, len(tokens), stride):
        end = min(begin + context, len(tokens))
        ids = torch.tensor([tokens[begin:end]])
        first = max(before, 1) - begin
        with torch.inference_mode():
            scores = [model(ids).logits[0, first - 1 : -1].double().log_softmax(-1) for model in models]
        targets = ids[0, first:]
        for each, score in zip(losses, scores, strict=True):
            each.append(-score.gather(1, targets[:, None])[:, 0])
        divergences.append((scores[-1].exp() * (scores[-1] - scores[0])).sum(-1))
        before = end
        if end == len(tokens):
            break
    return [float(torch.cat(each).mean().exp()) for each in losses], float(torch.cat(divergences).mean())


@pytest.fixture(scope="module")
def pair(make_decoder: Make) -> list[tuple[Path, Path]]:
    """Two decoders with the same tokens, neither of them near uniform probabilities."""
    return [make_decoder("gpt2", n_layer=layers, initializer_range=0.01) for layers in (1, 2)]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


@pytest.mark.parametrize(("context", "stride"), [(64, 32), (20, 1), (17, 16), (None, None)])
def test_perplexities_equal_transformers(
    context: int | None, stride: int | None, pair: list[tuple[Path, Path]], text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (checkpoint, bundle), (other_checkpoint, other) = pair
    monkeypatch.setattr(window_scores, "PIECE_TOKENS", 13)  # windows run in several pieces
    monkeypatch.setattr(distributions, "SCORED_VALUES", 3 * 272)  # and three tokens at a time are scored
    found = perplexity(Bundle.open(bundle), text, Bundle.open(other), context=context, stride=stride)
    tokens = read_backend(Bundle.open(bundle)).encode(TEXT).ids
    expected, divergence = torch_metrics([checkpoint, other_checkpoint], tokens, context or 64, stride or 32)
    assert found.tokens == len(tokens) - 1
    assert [found.perplexity, found.against_perplexity] == pytest.approx(expected, rel=1e-5)
    assert found.kl_divergence == pytest.approx(divergence, rel=1e-4)
    assert divergence > 1e-3
    assert found.same_top is not None and 0 <= found.same_top < 1


def test_model_does_not_diverge_from_itself(pair: list[tuple[Path, Path]], text: Path) -> None:
    bundle = Bundle.open(pair[0][1])
    found = perplexity(bundle, text, bundle)
    assert (found.kl_divergence, found.same_top) == (0.0, 1.0)
    alone = perplexity(bundle, text)
    assert (alone.perplexity, alone.kl_divergence) == (found.perplexity, None)


def test_validate_reports_perplexity(intaglio: Run, pair: list[tuple[Path, Path]], text: Path, tmp_path: Path) -> None:
    bundles = [Path(shutil.copytree(bundle, tmp_path / str(index))) for index, (_, bundle) in enumerate(pair)]
    arguments = ("validate", bundles[0], "--perplexity", text, "--against", bundles[1])
    code, out, err = intaglio(*arguments, "--json")
    result = json.loads(out)
    assert (code, err, result["passed"], result["outputs"]) == (1, "", False, {})  # two models of random weights
    assert result["changes"] == "parts removed, replaced or trained (another checkpoint)"
    report = Path(result["report"])
    page = report.read_text(encoding="utf-8")
    assert f"{result['perplexity']:.4f}" in page
    assert f"{result['kl_divergence']:.6f} nats" in page
    written = json.loads(report.with_suffix(".json").read_text())
    assert written["perplexity"]["tokens"] == result["tokens"]
    code, out, _ = intaglio(
        *arguments, "--bound", "kl_divergence=9", "--bound", "same_top=0", "--max-perplexity-rise", "900"
    )
    assert code == 0
    assert f"{result['perplexity']:.4f}" in out
    code, out, _ = intaglio("validate", bundles[0], "--perplexity", text, "--json")
    alone = json.loads(out)
    assert (alone["perplexity"], alone["kl_divergence"]) == (pytest.approx(result["perplexity"]), None)
    assert (alone["judged"], alone["passed"], alone["measures"]) == (False, True, [])
    assert "MEASURED" in Path(alone["report"]).read_text(encoding="utf-8")
    assert "not compared" in Path(alone["report"]).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        ("two words", {}, r"9 tokens, expected at least 16"),
        ("", {}, "0 tokens"),
        (TEXT, {"context": 65}, "context 65: expected 2 to 64"),
        (TEXT, {"context": 1}, "context 1: expected 2"),
        (TEXT, {"stride": 64}, "stride 64: expected 1 to 63"),
        (TEXT, {"stride": 0}, "stride 0"),
        (TEXT, {"against": "pytorch"}, "--against pytorch: expected a bundle, as for every generative model"),
        (TEXT, {"max_perplexity_rise": 1.0}, "a bound needs a model to compare with. Add --against BUNDLE"),
    ],
)
def test_unmeasurable_inputs_are_refused(
    content: str, options: dict[str, Any], message: str, pair: list[tuple[Path, Path]], text: Path, tmp_path: Path
) -> None:
    text.write_text(content)
    with pytest.raises(UsageError, match=re.escape(message)):
        validate(pair[0][1], perplexity=text, report=tmp_path / "reports", **options)


def test_decoders_with_different_tokenizers_are_refused(
    pair: list[tuple[Path, Path]], make_decoder: Make, text: Path
) -> None:
    _, other = make_decoder("gpt2", vocab_size=300)
    with pytest.raises(UsageError, match="has other tokens than"):
        perplexity(Bundle.open(pair[0][1]), text, Bundle.open(other))


def test_encoder_has_no_perplexity(make_bundle: Callable[..., Path], chain: Any, text: Path, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="its task is 'unknown'"):
        validate(make_bundle(chain(1)), perplexity=text, report=tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--perplexity", "text.txt", "--bisect"], "leave out --bisect"),
        (["--perplexity", "text.txt", "--data", "more.txt"], "leave out --data"),
        (["--stride", "3"], "--context, --stride and --cache-bits are of a perplexity"),
        (["--cache-bits", "8"], "--context, --stride and --cache-bits are of a perplexity"),
        (["--perplexity", "/no/file"], "--perplexity /no/file: No such file"),
    ],
)
def test_incompatible_options_are_refused(
    options: list[str], message: str, intaglio: Run, pair: list[tuple[Path, Path]]
) -> None:
    code, out, err = intaglio("validate", pair[0][1], *options)
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("bits", [5, 32])
def test_other_bits_of_caches_are_refused(bits: int, pair: list[tuple[Path, Path]], text: Path) -> None:
    bundle = pair[0][1]
    with pytest.raises(UsageError, match=f"--cache-bits {bits}: expected one of 8, 4"):
        validate(bundle, against=bundle, perplexity=text, cache_bits=bits)


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    """Sources of several lengths, and their references."""
    path = tmp_path / "pairs.jsonl"
    texts = [("A source.", TEXT), ("é", "Zürich"), (TEXT, "a")]
    path.write_text("".join(json.dumps({"prompt": one, "reference": other}) + "\n" for one, other in texts))
    return path


def test_encoder_decoder_scores_references_given_their_sources(
    make_encoder_decoder: Make, pairs: Path, tmp_path: Path
) -> None:
    import torch
    import transformers

    checkpoint, bundle = make_encoder_decoder("t5", d_model=64, d_ff=128)
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(checkpoint, dtype=torch.float32)
    tokenizer = read_backend(Bundle.open(bundle))
    loss, count = 0.0, 0
    for line in pairs.read_text().splitlines():
        pair = json.loads(line)
        source, labels = (torch.tensor([tokenizer.encode(pair[key]).ids]) for key in ("prompt", "reference"))
        loss += model(input_ids=source, labels=labels).loss.item() * labels.shape[1]
        count += labels.shape[1]
    compress(bundle, tmp_path / "small", "int8-weights")
    found = perplexity(Bundle.open(bundle), pairs, against=Bundle.open(tmp_path / "small"))
    assert found.perplexity == pytest.approx(math.exp(loss / count), rel=1e-5)
    assert (found.tokens, found.text_tokens, found.windows, found.context) == (count, count + 3, 3, None)
    assert found.kl_divergence is not None and 0 < found.kl_divergence < 0.1
    assert validate(bundle, perplexity=pairs, against=bundle).kl_divergence == 0
    html = next((bundle / "reports").glob("*perplexity*.html")).read_text()
    assert "texts, each after its source" in html


def test_invalid_pairs_are_refused_in_one_line(
    make_encoder_decoder: Make, pairs: Path, tiny_decoder: Path, tmp_path: Path
) -> None:
    _, bundle = make_encoder_decoder("t5")
    bare = tmp_path / "bare.jsonl"
    bare.write_text('{"prompt": "a"}\n')
    opened = Bundle.open(bundle)
    cases: tuple[tuple[dict[str, Any], str], ...] = (
        ({"text": bare}, r'its lines have no "reference"'),
        ({"text": pairs, "context": 8}, "--context and --stride apply to a decoder's windows"),
        ({"text": pairs, "against": Bundle.open(tiny_decoder)}, "has other tokens than"),
    )
    for options, message in cases:
        with pytest.raises(UsageError, match=message) as caught:
            perplexity(opened, **options)
        assert "\n" not in str(caught.value)


def test_decoder_and_encoder_decoder_are_not_compared(
    make_encoder_decoder: Make, tiny_decoder: Path, text: Path
) -> None:
    _, other = make_encoder_decoder("t5")
    with pytest.raises(UsageError, match="has other tokens than"):
        perplexity(Bundle.open(tiny_decoder), text, Bundle.open(other))
