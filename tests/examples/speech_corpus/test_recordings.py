from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile
from speech_corpus.recordings import ASTERISK, SETS, SPHINX, found, paired, read

from intaglio.errors import UsageError

SET = {recordings.name: recordings for recordings in SETS}
ROOT = Path("/")


def write(path: Path, seconds: float = 0.5, rate: int = 8000, channels: int = 1) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    wave = 0.5 * np.sin(2 * np.pi * 300 * np.arange(round(seconds * rate)) / rate)
    soundfile.write(path, np.repeat(wave[:, None], channels, axis=1), rate, subtype="PCM_16")


def test_asterisk_prompts_have_texts_without_stage_directions(tmp_path: Path) -> None:
    texts = tmp_path / "usr/share/doc/asterisk-core-sounds-en/core-sounds-en.txt.gz"
    texts.parent.mkdir(parents=True)
    lines = (
        "; comment",
        "beep: [this is a simple beep tone]",
        "dictate/both_help: press * to toggle pause",
        "digits/7: seven",
        "digits/h-40: fourtieth",
        "hello: Hello.",
        "letters/b: b",
        "missing: This has no sound.",
        "pbx: The PBX is here.",
        "vm-press: Press 1 for help.",
    )
    texts.write_bytes(gzip.compress("\n".join(lines).encode()))
    for name in ("beep", "dictate/both_help", "digits/7", "digits/h-40", "hello", "letters/b", "pbx", "vm-press"):
        write(tmp_path / ASTERISK / f"{name}.wav")
    assert [each.text for each in read(SET["asterisk-digits"], tmp_path)] == ["seven"]
    phrases = list(read(SET["asterisk-phrases"], tmp_path))
    assert [each.text for each in phrases] == ["fortieth", "hello", "press one for help"]
    for each in phrases:
        assert each.samples.dtype == np.float32
        assert len(each.samples) == 8000  # 0.5 s at 8 kHz, resampled
        assert np.abs(each.samples[2000:6000]).max() == pytest.approx(0.5, abs=0.01)
    assert [(recordings.name, place) for recordings, place in found([tmp_path]) if place == tmp_path] == [
        ("asterisk-digits", tmp_path),
        ("asterisk-phrases", tmp_path),
    ]


def test_asterisk_prompts_need_the_package_with_their_texts(tmp_path: Path) -> None:
    write(tmp_path / ASTERISK / "hello.wav")
    assert not [name for name, place in found([tmp_path]) if place == tmp_path]


def test_stereo_is_averaged_and_texts_are_cleaned(tmp_path: Path) -> None:
    write(tmp_path / "one.wav", rate=48000, channels=2)
    (tmp_path / "one.txt").write_text("It's 3 o'clock!\n")
    (tmp_path / "alone.txt").write_text("No sound.")
    (only,) = read(replace(SET["audioeval"], name="own", folder=".", files=paired), tmp_path)
    assert (only.text, only.name, only.samples.shape) == ("it's three o'clock", "own", (8000,))
    assert np.abs(only.samples[2000:6000]).max() == pytest.approx(0.5, abs=0.01)


def test_damaged_recording_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "one.wav").write_bytes(b"RIFF nothing")
    (tmp_path / "one.txt").write_text("one")
    with pytest.raises(UsageError, match=r"one\.wav: cannot be read"):
        list(read(replace(SET["audioeval"], folder="."), tmp_path))


def test_sphinx_transcripts_name_their_files(tmp_path: Path) -> None:
    folder = tmp_path / SPHINX / "cards"
    write(folder / "001.wav", rate=16000)
    (folder / "cards.transcription").write_text("<s> Ten of clubs  </s> (001)\n<s> five five </s> (002)\n")
    assert [(each.text, each.path) for each in read(SET["cards"], tmp_path)] == [("ten of clubs", folder / "001.wav")]


def test_installed_sphinx_recordings_are_found() -> None:
    if not (ROOT / SPHINX).is_dir():
        pytest.skip("no pocketsphinx-testdata")
    there = {recordings.name: list(read(recordings, place)) for recordings, place in found()}
    assert [len(there[name]) for name in ("librivox", "cards", "sphinx-phrases")] == [5, 5, 4]
    assert there["librivox"][1].text == "he was not an ill disposed young man"
    assert 2 < len(there["sphinx-phrases"][0].samples) / 16000 < 3
    assert all(0.05 < np.abs(each.samples).max() <= 1 for each in there["librivox"])
