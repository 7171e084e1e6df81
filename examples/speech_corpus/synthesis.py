"""Speech from the program espeak-ng, one process an utterance, at 16 kHz."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Collection
from typing import Protocol

import numpy as np
import numpy.typing as npt
import soxr

from intaglio import EngineError, UsageError

PROGRAM = "espeak-ng"
SAMPLE_RATE = 16000  # Hz, of everything here
AMPLITUDE = 70  # of 0 to 200, 100 by default, at which some variants are clipped
SECONDS = 60  # that one utterance may take; it takes about 0.02
HEADER = 44  # bytes of the WAV that espeak-ng writes; its lengths are wrong, as the end is not known when it is written


class ToSpeak(Protocol):
    """A sentence and how it is spoken."""

    @property
    def text(self) -> str: ...  # noqa: D102
    @property
    def voice(self) -> str: ...  # noqa: D102
    @property
    def words_per_minute(self) -> int: ...  # noqa: D102
    @property
    def pitch(self) -> int: ...  # noqa: D102


class Synthesiser:
    """espeak-ng, which has to be installed: it is a program of its own, not a Python package."""

    def __init__(self) -> None:
        """Raises `UsageError` if the program is not found."""
        program = shutil.which(PROGRAM)
        if program is None:
            raise UsageError(
                f"{PROGRAM}: not found on the PATH; it speaks the sentences to train on. "
                f"Install it, on Debian and Ubuntu with: apt install {PROGRAM}"
            )
        self._program = program
        self.version = self._run("--version").decode().partition(" Data at")[0].strip()

    def check(self, voices: Collection[str]) -> None:
        """Raise `UsageError` for a voice that is not installed: espeak-ng would silently speak with another one."""
        accents, variants = self._installed("en"), self._installed("variant")
        unknown = []
        for voice in sorted(voices):
            accent, _, variant = voice.partition("+")
            if accent not in accents or (variant and variant not in variants):
                unknown.append(voice)
        if unknown:
            raise UsageError(
                f"{self.version}: has no voice {', '.join(unknown[:3])}, expected those of 1.51. "
                f"Install a newer {PROGRAM} and its data package {PROGRAM}-data."
            )

    def speak(self, utterance: ToSpeak) -> npt.NDArray[np.float32]:
        """The utterance's samples, float32 [samples], -1 to 1, 16 kHz. Raises `EngineError` if espeak-ng fails."""
        voice = ("-v", utterance.voice, "-s", str(utterance.words_per_minute), "-p", str(utterance.pitch))
        wav = self._run(*voice, "-a", str(AMPLITUDE), "--stdout", "--", utterance.text)
        samples = np.frombuffer(wav, "<i2", offset=min(HEADER, len(wav)))
        if not samples.any():
            raise EngineError(f"{PROGRAM}: no sound for {utterance.text!r} with the voice {utterance.voice}.")
        rate = int.from_bytes(wav[24:28], "little")
        resampled: npt.NDArray[np.float32] = soxr.resample(samples.astype(np.float32) / 2**15, rate, SAMPLE_RATE)
        return resampled

    def _installed(self, language: str) -> set[str]:
        """The names of the voices that `espeak-ng --voices=` lists: of languages, or of files for variants."""
        rows = self._run(f"--voices={language}").decode().splitlines()[1:]
        if language == "variant":  # a file's name may have spaces: "!v/Mr serious"
            return {row.partition("!v/")[2].partition("  ")[0].partition("(")[0].strip() for row in rows}
        return {row.split()[1] for row in rows}

    def _run(self, *arguments: str) -> bytes:
        """The program's standard output."""
        try:
            done = subprocess.run([self._program, *arguments], capture_output=True, timeout=SECONDS, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise EngineError(f"{PROGRAM}: {error}.") from error
        if done.returncode != 0:
            message = " ".join(done.stderr.decode(errors="replace").split())
            raise EngineError(f"{PROGRAM}: exit code {done.returncode}: {message}")
        return done.stdout
