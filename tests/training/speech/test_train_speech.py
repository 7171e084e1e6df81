"""The verb, at a tiny size, on a corpus of tones."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from tone_corpora import write_corpus

from intaglio import interrupts
from intaglio.errors import GraphError, UsageError
from intaglio.exporters import export
from intaglio.networks.speech.configuration import SqueezeformerConfig, read_config
from intaglio.networks.speech.front_end import LogMel
from intaglio.networks.speech.network import SpeechNetwork
from intaglio.runtime import run
from intaglio.runtime.speech.vocabulary import read_vocabulary
from intaglio.samples import speech_samples
from intaglio.training import TrainedSpeech, train_speech
from intaglio.training.speech import speech_trainer, training_run
from intaglio.training.speech.corpus import Corpus
from intaglio.training.speech.ctc_losses import TrainingLoss
from intaglio.training.speech.features import FeatureReader, Mixed
from intaglio.training.speech.results import RESULTS, Evaluation
from intaglio.training.speech.speech_trainer import SpeechTrainer
from intaglio.training.speech.tokens import characters
from intaglio.training.speech.training_options import ABLATIONS, SpeechTraining
from intaglio.training.speech.training_run import TrainingRun, mean

Run = Callable[..., tuple[int, str, str]]
TINY = SpeechTraining(
    width=16, layers=2, heads=2, channels=4, steps=4, warm_up=2, hold=1, batch_frames=600, evaluate_every=2, variants=1
)
FLAGS = [f"--{name.replace('_', '-')}={getattr(TINY, name)}" for name in ("width", "layers", "heads", "channels")]
FLAGS += ["--steps=2", "--batch-frames=600", "--variants=1", "--threads=1"]


@pytest.fixture(scope="module")
def spoken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpora") / "tones", train=12, recordings=2)


def trained(output: Path, spoken: Path, options: SpeechTraining = TINY, **others: Any) -> TrainedSpeech:
    return train_speech(spoken, output, options, **({"threads": 1} | others))


def test_checkpoint_is_exported_with_complete_results(spoken: Path, tmp_path: Path) -> None:
    seen: list[int] = []
    result = trained(tmp_path / "made", spoken, report=lambda each: seen.append(each.step))
    assert seen == [2, 4] == [each.step for each in result.evaluations]
    rates = [each.learning_rate for each in result.evaluations]
    cooled = 0.25 / TINY.cool_down  # three of four steps are complete before the last
    assert rates[1] == pytest.approx(rates[0] * 2 / 3 * cooled)
    assert result.utterances == {"train": 12, "validation": 4, "test": 4}
    assert (result.steps, result.tokens) == (4, 128)
    errors = result.errors
    assert errors.test.utterances == errors.mixed.utterances == 4
    for groups in (errors.kinds, errors.voices):
        assert sum(each.words for each in groups.values()) == errors.test.words > 0
    assert set(errors.kinds) == {"prose", "digits", "commands"} and set(errors.voices) == {"test 0", "test 1"}
    recordings = {name: each.utterances for name, each in errors.recordings.items()}
    assert recordings == {"LibriVox": 5, "prose": 1, "digits": 1}
    assert {path.name for path in (tmp_path / "made").iterdir()} == {
        *("config.json", "model.safetensors", "vocabulary.json", RESULTS)
    }
    assert msgspec.json.decode((tmp_path / "made" / RESULTS).read_bytes(), type=TrainedSpeech) == result
    config = read_config(json.loads((tmp_path / "made/config.json").read_text()), "config.json")
    assert isinstance(config, SqueezeformerConfig) and config.hidden_size == 16
    weights = load_file(tmp_path / "made/model.safetensors")
    running = [name for name in weights if "running" in name]
    assert result.parameters == sum(array.size for name, array in weights.items() if name not in running)
    export(tmp_path / "made", tmp_path / "bundle")
    recording = Path(speech_samples.__file__).parent / "recordings/sentence-1.flac"
    (transcript,) = run(tmp_path / "bundle", [str(recording)])
    assert set(transcript.transcript) <= set("abcdefghijklmnopqrstuvwxyz' ")


def test_weights_depend_on_the_seed_alone(spoken: Path, tmp_path: Path) -> None:
    for name, seed in (("one", 3), ("two", 3), ("other", 4)):
        torch.rand(1)  # other random draws have no effect
        state = torch.random.get_rng_state()
        trained(tmp_path / name, spoken, replace(TINY, seed=seed, dropout=0.2))
        assert torch.equal(torch.random.get_rng_state(), state)
    weights = {name: (tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "two", "other")}
    assert weights["one"] == weights["two"] != weights["other"]


@pytest.mark.proof
def test_every_ablation_is_trained_and_exported(spoken: Path, tmp_path: Path) -> None:
    for ablation in ABLATIONS:
        result = trained(tmp_path / ablation, spoken, replace(TINY, ablation=ablation, steps=1))
        assert result.options["ablation"] == ablation
        export(tmp_path / ablation, tmp_path / "bundle", force=True, check=False)
        manifest = json.loads((tmp_path / "bundle/bundle.json").read_text())
        assert manifest["audio"]["frame_samples"] == (1280 if ablation == "no-upsampling" else 640)


def test_conformer_outputs_sub_word_pieces(spoken: Path, tmp_path: Path) -> None:
    result = trained(tmp_path / "made", spoken, replace(TINY, architecture="conformer-ctc", pieces=40, steps=1))
    vocabulary = read_vocabulary(tmp_path / "made/vocabulary.json")
    assert len(vocabulary) == result.tokens == 40 and vocabulary.word_mark == "▁"
    assert export(tmp_path / "made", tmp_path / "bundle").passed


def test_run_continues_from_the_weights_of_another(spoken: Path, tmp_path: Path) -> None:
    trained(tmp_path / "first", spoken)
    still = replace(TINY, learning_rate=1e-12, dropout=0.1, steps=1, average=1)
    trained(tmp_path / "second", spoken, still, start=tmp_path / "first")
    first, second = (load_file(tmp_path / name / "model.safetensors") for name in ("first", "second"))
    for name, array in first.items():
        if "running" not in name:  # batch statistics
            np.testing.assert_allclose(second[name], array, rtol=0, atol=1e-9, err_msg=name)


def test_time_limit_ends_a_run_before_its_steps(spoken: Path, tmp_path: Path) -> None:
    result = trained(tmp_path / "made", spoken, replace(TINY, steps=10**9, minutes=0.01))
    assert 0.6 <= result.evaluations[-1].seconds < 20
    assert result.steps == result.evaluations[-1].step < 10**6


def test_diverging_run_leaves_no_files(spoken: Path, tmp_path: Path) -> None:
    with pytest.raises(GraphError, match=r"the loss is (nan|inf) after \d+ steps\. Lower the learning rate\."):
        trained(tmp_path / "made", spoken, replace(TINY, learning_rate=1e30, steps=20, warm_up=1))
    assert not (tmp_path / "made").exists()


@pytest.fixture
def signals(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Ctrl-C as the program handles it; cleared afterwards."""
    monkeypatch.setattr(interrupts, "_asked", False)
    before = [(number, signal.getsignal(number)) for number in interrupts.SIGNALS]
    interrupts.install()
    yield
    for number, handler in before:
        signal.signal(number, handler)


@pytest.mark.usefixtures("signals")
def test_interrupt_after_an_evaluation_ends_only_the_training(spoken: Path, tmp_path: Path) -> None:
    def interrupt(evaluation: Evaluation) -> None:
        if evaluation.step == 4:
            signal.raise_signal(signal.SIGINT)

    result = trained(tmp_path / "made", spoken, replace(TINY, steps=10**9), report=interrupt)
    assert result.steps == 4 and set(result.kept_steps) <= {2, 4}
    assert (tmp_path / "made" / RESULTS).is_file()
    trained(tmp_path / "again", spoken)  # the interrupt is cleared


@pytest.mark.usefixtures("signals")
def test_earlier_interrupt_leaves_no_files(spoken: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step, steps = SpeechTrainer.step, []

    def interrupted(self: SpeechTrainer, examples: Any, progress: float) -> Any:
        steps.append(len(examples))
        signal.raise_signal(signal.SIGINT)
        return step(self, examples, progress)

    monkeypatch.setattr(SpeechTrainer, "step", interrupted)
    before = set(tmp_path.iterdir())
    with pytest.raises(interrupts.Interrupted):
        trained(tmp_path / "made", spoken)
    assert len(steps) == 1
    assert set(tmp_path.iterdir()) == before


def test_existing_output_is_refused_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    (tmp_path / "made/mine.txt").write_text("mine")
    with pytest.raises(UsageError, match=r"the directory exists\. Add --force"):
        train_speech(tmp_path / "missing.jsonl", tmp_path / "made")
    with pytest.raises(UsageError, match=r"missing\.jsonl"):
        train_speech(tmp_path / "missing.jsonl", tmp_path / "other")
    assert not (tmp_path / "other").exists()


@pytest.fixture
def corpus(spoken: Path) -> Corpus:
    return Corpus(spoken)


def test_evaluation_restores_training_mode(spoken: Path, tmp_path: Path) -> None:
    found: list[bool] = []

    class Watched(SpeechTrainer):
        def step(self, examples: Any, progress: float = 0.0) -> Any:
            found.append(self.network.training)
            return super().step(examples, progress)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(training_run, "SpeechTrainer", Watched)
        trained(tmp_path / "made", spoken, replace(TINY, evaluate_every=1))
    assert found == [True] * TINY.steps


def test_loss_includes_the_letter_share_after_an_early_block(spoken: Path, tmp_path: Path) -> None:
    made: list[tuple[float, int]] = []

    class Watched(TrainingLoss):
        def __init__(self, network: SpeechNetwork, letters: float, block: int):
            made.append((letters, block))
            super().__init__(network, letters, block)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(speech_trainer, "TrainingLoss", Watched)
        trained(tmp_path / "made", spoken, replace(TINY, layers=8, letters=0.25, steps=1))
    assert made == [(0.25, 2)]


def test_features_equal_the_network_and_mixing_depends_on_the_seed(corpus: Corpus) -> None:
    config = TINY.config(29)
    reader = FeatureReader(corpus, config.front_end, characters())
    spoken = corpus.part("train")
    clean = reader.examples(spoken, "")
    for each, example in zip(spoken, clean, strict=True):
        audio = torch.from_numpy(corpus.audio(each))[None]
        expected = LogMel(config.front_end)(audio, torch.tensor([audio.shape[1]]))[0][0]
        np.testing.assert_allclose(example.features, expected.numpy(), atol=4e-3)
        assert (
            characters().vocabulary.text(example.tokens) == characters().vocabulary.text(example.letters) == each.text
        )
    one, same, other = (reader.examples(spoken, "", Mixed((seed, 0))) for seed in (1, 1, 2))
    for first, second, third, fourth in zip(clean, one, same, other, strict=True):
        assert np.array_equal(second.features, third.features)
        assert not np.array_equal(second.features, first.features)
        assert not np.array_equal(second.features, fourth.features)
    half = reader.examples(spoken, "", Mixed((1, 0), clean=0.5))
    unchanged = [np.array_equal(a.features, b.features) for a, b in zip(clean, half, strict=True)]
    assert 0 < sum(unchanged) < len(unchanged)


def test_variants_rotate_and_zero_variants_are_always_new(
    spoken: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[int, ...]] = []
    examples = FeatureReader.examples

    def counted(self: FeatureReader, utterances: Any, description: str, mixed: Mixed | None = None) -> Any:
        if mixed is not None and mixed.clean:
            made.append(tuple(mixed.seed))
        return examples(self, utterances, description, mixed)

    monkeypatch.setattr(FeatureReader, "examples", counted)
    many = replace(TINY, steps=5, batch_frames=100_000)  # a step is an epoch
    for variants, expected in ((2, [0, 1]), (0, [0, 1, 2, 3, 4])):
        made.clear()
        trained(tmp_path / str(variants), spoken, replace(many, variants=variants))
        assert [variant for _, variant in made] == expected


def test_mean_of_the_best_weights_is_kept_only_if_not_worse(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = characters()
    network = SpeechNetwork(TINY.config(29), front_end=False)
    spoken = corpus.part("validation")
    validation = FeatureReader(corpus, network.config.front_end, tokens).examples(spoken, ""), [e.text for e in spoken]
    for last, kept in ((19.0, [1, 3]), (21.0, [3])):
        rates = iter([40.0, 50.0, 20.0, last])
        states: list[dict[str, torch.Tensor]] = []

        def rate(self: TrainingRun) -> float:
            states.append({name: each.clone() for name, each in network.state_dict().items()})  # noqa: B023
            return next(rates)  # noqa: B023

        monkeypatch.setattr(TrainingRun, "_rate", rate)
        options = replace(TINY, steps=3, evaluate_every=1, average=2)
        run = TrainingRun(network, tokens, options, lambda epoch: validation[0], validation)
        assert run.train() == (min(last, 20.0), kept)
        expected = mean([states[2], states[0]]) if len(kept) == 2 else states[2]
        for name, each in network.state_dict().items():
            assert torch.equal(each, expected[name]), name


def test_command_line_prints_a_table_or_one_object(intaglio: Run, spoken: Path, tmp_path: Path) -> None:
    command = ["train", "speech", spoken, *FLAGS]
    code, out, err = intaglio(*command, "-o", tmp_path / "one", "--json")
    assert code == 0 and out.count("\n") == 1 and err.startswith("step 2: loss ") and err.count("\n") == 1
    assert json.loads(out)["options"]["width"] == 16
    code, out, _ = intaglio(*command, "-o", tmp_path / "two")
    assert code == 0 and "held-out voices" in out and "people: LibriVox" in out and "128 tokens" in out
    code, out, err = intaglio(*command, "-o", tmp_path / "two")
    assert (code, out, err.count("\n")) == (2, "", 1) and "Add --force" in err
    code, out, err = intaglio(*command, "-o", tmp_path / "three", "--ablation=no-skip", "--architecture=conformer-ctc")
    assert (code, out) == (2, "") and err.count("\n") == 1 and "only for squeezeformer" in err
    for option in ("CORPUS", "--utterances=8", "--held-out=4", "--corpora=here", "--recordings=here"):
        given = ["train", "speech", *FLAGS] if option == "CORPUS" else [*command, option]
        code, out, err = intaglio(*given, "-o", tmp_path / "four")
        assert (code, out, err.count("\n")) == (2, "", 1) and option.partition("=")[0] in err
        assert "python examples/make_speech_corpus.py -o corpus" in err
    assert not (tmp_path / "four").exists()
