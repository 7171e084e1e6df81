"""A stand-in for espeak-ng, for tests that do not depend on its speech."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from speech_corpus.voices import VOICES

PROGRAM = """#!{python}
import math, struct, sys
ACCENTS, VARIANTS = {accents!r}, {variants!r}
arguments = sys.argv[1:]
if arguments == ["--version"]:
    print("eSpeak NG text-to-speech: 1.51  Data at: /nowhere")
elif arguments == ["--voices=en"]:
    print("Pty Language Age/Gender VoiceName File Other")
    print("\\n".join(f" 2  {{accent}}  --/M  English  gmw/en  (en 2)" for accent in ACCENTS))
elif arguments == ["--voices=variant"]:
    print("Pty Language Age/Gender VoiceName File Other")
    print("\\n".join(f" 5  variant  --/M  Someone  !v/{{name}}    " for name in VARIANTS))
elif arguments[-1] == "fail":
    sys.exit("Error: the sound is broken.")
else:
    loud = 0 if arguments[-1] == "silence" else 8000
    count = 2205 * len(arguments[-1].split())
    wave = [int(loud * math.sin(index / 20)) for index in range(count)]
    wrong = 0x7FFFF000
    header = struct.pack("<4sI8sIHHIIHH4sI", b"RIFF", wrong, b"WAVEfmt ", 16, 1, 1, 22050, 44100, 2, 16, b"data", wrong)
    sys.stdout.buffer.write(header + struct.pack(f"<{{count}}h", *wave))
"""


@pytest.fixture
def tones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a program espeak-ng, first on the PATH, that renders every word as a tone of 0.1 s."""
    variants = [name for voices in VOICES.values() for name in (*voices.men, *voices.women) if name]
    accents = [accent for voices in VOICES.values() for accent in voices.accents]
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "espeak-ng"
    program.write_text(PROGRAM.format(python=sys.executable, accents=accents, variants=variants))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    return folder
