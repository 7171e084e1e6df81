from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from intaglio.samples.speech_samples import SAMPLE_RATE
from intaglio.training.speech.mixing import (
    Mixing,
    Samples,
    add_noise,
    babble,
    change_speed,
    in_room,
    mix,
    pink,
    white,
)

SAME = Mixing(speed=(1, 1), silence=(0, 0), room_share=0, noise_share=0, gain=(0, 0))


def tone(frequency: float = 440, seconds: float = 1) -> Samples:
    return (0.3 * np.sin(2 * np.pi * frequency * np.arange(round(seconds * SAMPLE_RATE)) / SAMPLE_RATE)).astype(
        np.float32
    )


def power(audio: Samples) -> float:
    return float(np.mean(np.square(audio, dtype=np.float64)))


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_augmentation_depends_on_the_seed_alone() -> None:
    others = [tone(300), tone(500)]
    one, again, other = (mix(tone(), generator(seed), Mixing(), others) for seed in (3, 3, 4))
    assert np.array_equal(one, again)
    assert one.dtype == np.float32
    assert len(one) != len(other) or not np.array_equal(one, other)


def test_disabled_augmentations_leave_the_audio_unchanged() -> None:
    audio = tone()
    assert np.abs(mix(audio, generator(), SAME) - audio).max() < 1e-3


def test_input_is_not_modified() -> None:
    audio = tone()
    mix(audio, generator(), Mixing(room_share=1, noise_share=1))
    assert np.array_equal(audio, tone())


@pytest.mark.parametrize("speed", [0.9, 1.1])
def test_speed_changes_length_and_pitch(speed: float) -> None:
    changed = change_speed(tone(440), speed)
    assert len(changed) == pytest.approx(SAMPLE_RATE / speed, abs=2)
    frequency = np.abs(np.fft.rfft(changed)).argmax() * SAMPLE_RATE / len(changed)
    assert frequency == pytest.approx(440 * speed, abs=1)


@pytest.mark.parametrize("decibels", [5, 20])
def test_noise_has_the_requested_signal_to_noise_ratio(decibels: float) -> None:
    audio = tone()
    noise = add_noise(audio, white(len(audio), generator()), decibels) - audio
    assert 10 * np.log10(power(audio) / power(noise)) == pytest.approx(decibels, abs=0.05)


def test_noise_on_silence_is_silence() -> None:
    silence = np.zeros(1000, np.float32)
    assert not add_noise(silence, white(1000, generator()), 10).any()
    assert not mix(silence, generator(), Mixing(room_share=1, noise_share=1)).any()


def test_pink_noise_falls_by_3_decibels_per_octave_and_white_noise_is_flat() -> None:
    for noise, fall in ((pink, 3.01), (white, 0)):
        spectrum = np.abs(np.fft.rfft(noise(2**18, generator()))) ** 2
        octaves = [spectrum[2**k : 2 ** (k + 1)].mean() for k in range(8, 16)]
        slope = np.polyfit(range(8), 10 * np.log10(octaves), 1)[0]
        assert slope == pytest.approx(-fall, abs=0.3)


def test_babble_has_several_equally_loud_speakers_of_any_length() -> None:
    loud, quiet = tone(1000), tone(2000, 0.5) / 100
    noise = babble([loud, quiet], 3 * SAMPLE_RATE, generator(1))
    spectrum = np.abs(np.fft.rfft(noise)) ** 2
    assert len(noise) == 3 * SAMPLE_RATE
    assert 0.1 < spectrum[3 * 1000] / spectrum[3 * 2000] < 10  # 10^4 if their levels were not normalised


def test_reverberation_decays_and_keeps_length_and_power() -> None:
    click = np.zeros(SAMPLE_RATE, np.float32)
    click[100] = 0.5
    echoed = in_room(click, 0.4, generator())
    assert len(echoed) == len(click)
    assert power(echoed) == pytest.approx(power(click), rel=1e-4)
    assert np.abs(echoed[:100]).max() < 1e-6  # no echo precedes the sound
    assert np.abs(echoed).argmax() == 100
    early, late = power(echoed[140:1700]), power(echoed[4900:6500])  # 0.3 s apart: 45 of the 60 dB
    assert 10 * np.log10(early / late) == pytest.approx(45, abs=3)
    assert power(echoed[7000:]) < 1e-4 * early


def test_gain_changes_the_level_and_never_exceeds_1() -> None:
    audio = tone()
    assert power(mix(audio, generator(), replace(SAME, gain=(-6, -6)))) == pytest.approx(power(audio) / 3.98, rel=0.01)
    assert np.abs(mix(audio, generator(), replace(SAME, gain=(40, 40)))).max() == 1


def test_silence_is_added_before_and_after() -> None:
    changed = mix(tone() + 0.1, generator(), replace(SAME, silence=(0.2, 0.2)))
    assert len(changed) == round(1.4 * SAMPLE_RATE)
    assert not changed[:3200].any() and not changed[-3200:].any()
