"""Bundles that take recordings: opening, files of any length, and incompatible bundles."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import numpy as np
import pytest
import soundfile
from click.testing import CliRunner
from speech_networks import random_network, squeezeformer, write_checkpoint

import intaglio
from intaglio.bundle.bundle import Bundle
from intaglio.cli import cli
from intaglio.errors import BundleError, UsageError
from intaglio.networks.speech.configuration import FrontEnd
from intaglio.runtime.speech.beam_search import CtcBeamOptions
from intaglio.runtime.speech.recognizer import SpeechOptions, SpeechRecognizer, speech_options
from intaglio.runtime.speech.windows import WindowOptions
from intaglio.samples.speech_samples import recordings


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recognizer")
    network = random_network(squeezeformer(front_end=FrontEnd(mels=20, normalize=False)))
    intaglio.export(write_checkpoint(folder / "checkpoint", network), folder / "bundle", check=False)
    return folder / "bundle"


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    path = tmp_path / "speech.wav"
    soundfile.write(path, recordings()[0].samples, 16000)
    return path


def test_transcript_is_independent_of_block_size(bundle: Path) -> None:
    samples = recordings()[0].samples
    with SpeechRecognizer(Bundle.open(bundle)) as recognizer:
        whole = recognizer.transcribe_samples([samples])
        assert whole.text and whole.seconds == round(len(samples) / 16000, 3)
        for size in (1, 999, 16000)[1:]:
            blocks = [samples[start : start + size] for start in range(0, len(samples), size)]
            assert recognizer.transcribe_samples(blocks) == whole


def test_short_recording_is_padded_to_the_graphs_window(bundle: Path) -> None:
    with SpeechRecognizer(Bundle.open(bundle)) as recognizer:
        for samples in (1, 159, 399):
            assert recognizer.transcribe_samples([np.zeros(samples, np.float32)]).seconds == round(samples / 16000, 3)


def test_windows_cover_a_long_recording(bundle: Path) -> None:
    samples = np.tile(recordings()[0].samples, 3)
    options = SpeechOptions(windows=WindowOptions(seconds=8.0, overlap=4.0))
    with SpeechRecognizer(Bundle.open(bundle), options=options) as recognizer:
        found = recognizer.transcribe_samples([samples])
        assert found.words[-1].end > found.seconds - 3
    with SpeechRecognizer(Bundle.open(bundle)) as recognizer:
        whole = recognizer.transcribe_samples([samples])
    assert abs(len(whole.tokens) - len(found.tokens)) <= 0.2 * len(whole.tokens)


def test_beam_scores_at_least_like_greedy(bundle: Path) -> None:
    samples = recordings()[1].samples
    with SpeechRecognizer(Bundle.open(bundle), options=SpeechOptions(beam=CtcBeamOptions(20))) as recognizer:
        assert recognizer.transcribe_samples([samples]).text


def test_stream_returns_words_and_latency(bundle: Path) -> None:
    samples = recordings()[0].samples
    with SpeechRecognizer(Bundle.open(bundle)) as recognizer:
        stream = recognizer.stream()
        words = [
            word for start in range(0, len(samples), 4000) for word in stream.feed(samples[start : start + 4000]).words
        ]
        words += stream.flush().words
    assert 0 < stream.latency <= 2.5
    assert words and words[-1].end <= len(samples) / 16000


def test_language_model_implies_a_beam() -> None:
    with pytest.raises(UsageError, match="needs a beam search"):
        SpeechOptions(language_model="words.arpa")


@pytest.mark.parametrize("seconds", [float("nan"), 0.0, -1.0])
def test_maximum_that_is_no_number_of_seconds_is_refused(seconds: float) -> None:
    with pytest.raises(UsageError, match=f"max seconds {seconds}: expected more than 0"):
        speech_options(max_seconds=seconds)


def test_language_model_weights_affect_the_result() -> None:
    assert speech_options() == SpeechOptions()
    assert speech_options(8) == SpeechOptions(CtcBeamOptions(8))
    assert speech_options(None, "words.arpa") == SpeechOptions(CtcBeamOptions(), "words.arpa")
    assert speech_options(None, "words.arpa", 0.25, 2.0, 9.0) == SpeechOptions(
        CtcBeamOptions(alpha=0.25, beta=2.0), "words.arpa", max_seconds=9.0
    )
    for given in ({"language_model_weight": 0.5}, {"word_bonus": 0.5, "beam": 5}):
        with pytest.raises(UsageError, match=r"is for a language model\. Add --language-model FILE"):
            speech_options(**given)


def test_help_lists_the_default_weights() -> None:
    out = CliRunner().invoke(cli, ["run", "--help"]).output
    defaults = [f"[default: {value}]" for value in (CtcBeamOptions.alpha, CtcBeamOptions.beta)]
    assert all(default in " ".join(out.split()) for default in defaults)


def test_feature_bundle_rejects_recordings(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "checkpoint", random_network(squeezeformer()))
    intaglio.export(checkpoint, tmp_path / "bundle", check=False, features=True)
    with pytest.raises(UsageError, match="takes features"):
        SpeechRecognizer(Bundle.open(tmp_path / "bundle"))


def test_vocabulary_of_another_model_is_rejected(bundle: Path, tmp_path: Path) -> None:
    opened = Bundle.open(bundle)
    content = msgspec.json.encode({"tokens": ["<blank>", "a"], "blank": 0, "word_mark": " "})
    copied = tmp_path / "bundle"
    copied.mkdir()
    for name in opened.manifest.files:
        (copied / name).write_bytes((bundle / name).read_bytes())
    (copied / "bundle.json").write_bytes((bundle / "bundle.json").read_bytes())
    Bundle.open(copied).add_files({"vocabulary.json": content})
    with pytest.raises(BundleError, match="log_probs of 12 tokens"):
        SpeechRecognizer(Bundle.open(copied))


def test_command_transcribes_files_folders_and_lists(bundle: Path, recording: Path, tmp_path: Path) -> None:
    runner = CliRunner()
    single = runner.invoke(cli, ["run", str(bundle), str(recording)])
    assert single.exit_code == 0 and single.output.strip()
    (tmp_path / "list.tsv").write_text("speech.wav\tand mister john\n")
    for where in (tmp_path / "list.tsv", tmp_path):
        listed = runner.invoke(cli, ["run", str(bundle), "--input", str(where), "--json"])
        (line,) = listed.output.splitlines()
        found = json.loads(line)
        assert found["transcript"] == single.output.strip()
        assert found["words"][0].keys() == {"text", "start", "end", "confidence"}


def test_command_transcribes_standard_input(bundle: Path) -> None:
    samples = (recordings()[0].samples * 32767).astype("<i2").tobytes()
    result = CliRunner().invoke(cli, ["run", str(bundle), "--stream"], input=samples)
    assert result.exit_code == 0, result.output
    assert "latency" in result.stderr and result.stdout.strip()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "got neither"),
        (["speech.wav", "--stream"], "--stream reads standard input"),
        (["missing.wav"], "missing.wav"),
        (["speech.wav", "--beam", "0"], "beam width 0"),
        (["speech.wav", "--max-seconds", "1"], "expected at most 1"),
        (["speech.wav", "--language-model", "missing.arpa"], "missing.arpa"),
        (["speech.wav", "--word-bonus", "2"], "--word-bonus 2.0 is for a language model"),
        (["speech.wav", "--language-model", "missing.arpa", "--language-model-weight", "nan"], "beam alpha nan"),
    ],
)
def test_invalid_commands_are_one_line_errors(arguments: list[str], reason: str, bundle: Path, recording: Path) -> None:
    given = [str(recording) if each == "speech.wav" else each for each in arguments]
    result = CliRunner().invoke(cli, ["run", str(bundle), *given])
    assert result.exception is not None and reason in str(result.exception)
