"""Speech recognisers that are exported by tracing compute and write what `transformers` does."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from covering import few
from safetensors.torch import load_file, save_file
from tiny_recognizers import CLASSES, TOKENS, save_recognizer

import intaglio
from intaglio.bundle.bundle import Bundle
from intaglio.errors import IntaglioError, SourceError
from intaglio.exporters.checkpoints.checkpoint import Checkpoint
from intaglio.exporters.kinds import find_kind
from intaglio.graph_passes import compress
from intaglio.runtime import open_engine
from intaglio.runtime.modalities.audio import padded
from intaglio.runtime.speech.recordings.run_recordings import run_recordings
from intaglio.runtime.speech.vocabulary import VOCABULARY, read_vocabulary
from intaglio.samples.speech_samples import recordings

BOUND = 2e-5  # of the largest number
LENGTHS = (16_000, 9_001, 285)  # samples; the last are one frame
KINDS, OTHERS = list(CLASSES), list[str]()
RECIPES = ("float16", "int8-weights")

Samples = npt.NDArray[np.float32]


def rows() -> list[Samples]:
    return [each.samples[4000 : 4000 + length] for each, length in zip(recordings(), LENGTHS, strict=False)]


def library(checkpoint: Path) -> tuple[Any, Any, Any]:
    """The model, the feature extractor and the tokenizer of transformers."""
    import transformers

    model = transformers.AutoModelForCTC.from_pretrained(checkpoint, attn_implementation="eager").eval()
    extractor = transformers.AutoFeatureExtractor.from_pretrained(checkpoint)
    return model, extractor, transformers.AutoTokenizer.from_pretrained(checkpoint)


def logits_alone(checkpoint: Path, samples: Samples) -> Any:
    import torch

    model, extractor, _ = library(checkpoint)
    with torch.inference_mode():
        return model(**extractor(samples, sampling_rate=16_000, return_tensors="pt")).logits[0]


def assert_equals_library(checkpoint: Path, found: dict[str, Any]) -> None:
    """The log-probabilities of `rows` in one batch equal those of each row alone."""
    for index, samples in enumerate(rows()):
        wanted = logits_alone(checkpoint, samples).log_softmax(-1).numpy()
        assert found["output_lengths"][index] == len(wanted)
        atol = BOUND * np.abs(wanted).max()
        np.testing.assert_allclose(found["log_probs"][index, : len(wanted)], wanted, rtol=0, atol=atol)


def loaded(checkpoint: Path) -> Any:
    """The module that is traced."""
    opened = Checkpoint.open(str(checkpoint))
    kind, family = find_kind(opened.config, str(opened.folder))
    assert kind.load is not None
    return kind.load(opened, family)


@pytest.mark.parametrize("norm", few(["group", "layer"], ["group"]))
def test_padding_never_changes_a_row(norm: str, tmp_path: Path) -> None:
    """Also where the model of transformers reads padding: in a norm over time, or in convolutions of its encoder."""
    import torch

    model_type = "data2vec-audio" if norm == "layer" else "wav2vec2"
    checkpoint = save_recognizer(tmp_path, model_type, norm)
    module, feeds = loaded(checkpoint), padded(rows())
    feeds["audio"][1, LENGTHS[1] :] = 1.0
    with torch.inference_mode():
        log_probs, frames = module(*map(torch.from_numpy, feeds.values()))
    assert_equals_library(checkpoint, {"log_probs": log_probs.numpy(), "output_lengths": frames.numpy()})


def test_weights_for_training_alone_may_be_missing(tmp_path: Path) -> None:
    """Checkpoints lack the vector that masks frames, and name the parts of a weight as older versions of torch do."""
    checkpoint = save_recognizer(tmp_path, "wav2vec2")
    weights = load_file(checkpoint / "model.safetensors")
    renamed = {
        name.replace("parametrizations.weight.original0", "weight_g").replace(
            "parametrizations.weight.original1", "weight_v"
        ): tensor
        for name, tensor in weights.items()
        if not name.endswith("masked_spec_embed")
    }
    assert renamed.keys() != weights.keys() and len(renamed) == len(weights) - 1
    before = {name: each.clone() for name, each in loaded(checkpoint).state_dict().items()}
    save_file(renamed, checkpoint / "model.safetensors", {"format": "pt"})
    after = loaded(checkpoint).state_dict()
    assert all(bool((after[name] == each).all()) for name, each in before.items() if "masked" not in name)


@pytest.mark.proof
@pytest.mark.filterwarnings("ignore:Support for mismatched:UserWarning")  # torch's, of WavLM's two masks
@pytest.mark.parametrize("norm", ["group", "layer"])
@pytest.mark.parametrize("model_type", KINDS)
def test_recogniser_equals_transformers(
    model_type: str, norm: str, tmp_path: Path, proved: Callable[..., None]
) -> None:
    checkpoint = save_recognizer(tmp_path / "checkpoint", model_type, norm)
    assert intaglio.export(str(checkpoint), tmp_path / "bundle").passed
    bundle = Bundle.open(tmp_path / "bundle")
    feeds = padded(rows())
    with open_engine(bundle) as engine:
        found = engine.run(feeds)
    assert_equals_library(checkpoint, found)
    assert_transcripts_equal(checkpoint, bundle)
    assert intaglio.validate(tmp_path / "bundle").passed
    for recipe in RECIPES:
        compress(tmp_path / "bundle", tmp_path / recipe, recipe=recipe)
        with open_engine(tmp_path / recipe) as engine:
            near = engine.run(feeds)
        probabilities = [np.exp(each["log_probs"][0].astype(np.float32)) for each in (found, near)]
        assert np.abs(probabilities[0] - probabilities[1]).mean() < 0.02, recipe
    proved(
        model_type,
        "transcribe",
        "traced",
        tested=["log-probabilities", "transcript"],
        recipes=list(RECIPES),
        targets=["ort-cpu"],
    )


def assert_transcripts_equal(checkpoint: Path, bundle: Bundle) -> None:
    """The text of recordings equals that of the tokenizer of transformers, with one space for several."""
    paths = sorted((Path(intaglio.__file__).parent / "samples" / "recordings").glob("*.flac"))[:2]
    found = [each.transcript for each in run_recordings(bundle, paths)]
    tokenizer = library(checkpoint)[2]
    texts = [tokenizer.decode(logits_alone(checkpoint, each.samples).argmax(-1)) for each in recordings()[:2]]
    assert found == [" ".join(text.split()) for text in texts]
    assert all(found)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("preprocessor_config.json", None, "no preprocessor_config.json"),
        ("preprocessor_config.json", "[]", "not a JSON object"),
        ("preprocessor_config.json", {"feature_extractor_type": "WhisperFeatureExtractor"}, "only Wav2Vec2Feature"),
        ("preprocessor_config.json", {"do_normalize": "yes"}, "do_normalize is 'yes'"),
        ("preprocessor_config.json", {"sampling_rate": 0}, "sampling_rate is 0"),
        ("preprocessor_config.json", {"sampling_rate": 10**9}, "expected 1000 to 192000"),
        ("preprocessor_config.json", {"sampling_rate": "16k"}, "sampling_rate is '16k'"),
        ("preprocessor_config.json", {"feature_size": 80}, "feature_size '80' is not supported, only 1"),
        ("preprocessor_config.json", {"padding_side": "left"}, "padding_side 'left' is not supported, only 'right'"),
        ("preprocessor_config.json", {"padding_value": 1.0}, "padding_value '1.0' is not supported, only 0"),
        ("preprocessor_config.json", {"dither": 0.1}, "dither '0.1' is not supported"),
        ("vocab.json", None, "no readable tokenizer"),
        ("vocab.json", "{", "no readable tokenizer"),
        ("vocab.json", {"R": 99}, "vocab.json has no token 11"),
        ("vocab.json", {"E|": 5, "E": 99}, "'E|' contains the word_delimiter_token '|'"),
        ("vocab.json", {"\n": 5, "E": 99}, "token 5 is '\\n'"),
        ("vocab.json", {"": 5, "E": 99}, "token 5 is ''"),
        ("tokenizer_config.json", {"tokenizer_class": "BertTokenizer"}, "tokenizer"),
        ("tokenizer_config.json", {"replace_word_delimiter_char": "_"}, "'_' replaces the word_delimiter_token"),
        ("config.json", {"squeeze_factor": 2}, "joins 2 frames to one"),
        ("config.json", {"add_adapter": True}, "has convolutions behind its encoder (add_adapter)"),
        ("config.json", {"position_embeddings_type": "relative"}, "has relative positions"),
        ("config.json", {"feat_extract_norm": "batch"}, "feat_extract_norm 'batch'"),
        ("config.json", {"vocab_size": 11}, "do not have the shape in config.json"),
        ("config.json", {"architectures": ["Wav2Vec2ForPreTraining"]}, "nearest supported one is Wav2Vec2ForCTC"),
    ],
)
def test_invalid_settings_are_named(
    name: str, changes: dict[str, Any] | str | None, message: str, recogniser: Path, tmp_path: Path
) -> None:
    for file in recogniser.iterdir():
        (tmp_path / file.name).symlink_to(file)
    path = tmp_path / name
    text = path.read_text()
    path.unlink()
    if isinstance(changes, str):
        path.write_text(changes)
    elif changes is not None:
        path.write_text(json.dumps({**json.loads(text), **changes}))
    with pytest.raises(SourceError) as caught:
        intaglio.export(str(tmp_path), tmp_path / "bundle")
    assert message in str(caught.value) and "\n" not in str(caught.value)
    assert not (tmp_path / "bundle").exists()


@pytest.fixture(scope="module")
def recogniser(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_recognizer(tmp_path_factory.mktemp("recogniser"), "wav2vec2")


def test_tracing_needs_the_check(recogniser: Path, tmp_path: Path) -> None:
    with pytest.raises(IntaglioError, match="--no-check: the graph of a Wav2Vec2ForCTC is traced"):
        intaglio.export(str(recogniser), tmp_path / "bundle", check=False)


def test_vocabulary_comes_from_the_tokenizer(recogniser: Path, tmp_path: Path) -> None:
    from intaglio.exporters.speech.traced.vocabulary import write_vocabulary

    write_vocabulary(recogniser, len(TOKENS), tmp_path)
    vocabulary = read_vocabulary(tmp_path / VOCABULARY)
    assert (list(vocabulary.tokens), vocabulary.blank, vocabulary.word_mark) == (TOKENS, 0, "|")
    path = recogniser / "tokenizer_config.json"
    text = path.read_text()
    path.write_text(json.dumps({**json.loads(text), "do_lower_case": True}))
    assert write_vocabulary(recogniser, len(TOKENS), tmp_path).text([6, 4, 5]) == "t e"
    path.write_text(text)
