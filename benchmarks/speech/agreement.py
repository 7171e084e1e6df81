"""Does the exported recogniser of hama write the same phonemes as the package's own library?

    python -m benchmarks.speech.agreement [RECORDING_OR_FOLDER ...]

Runs both on the recordings that ship with intaglio and on those given, and compares log-probabilities and phonemes.
hama rounds its features to float16: one at the border of two numbers is rounded up or down by the order of
summation, and changes the frames around it.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import click
import numpy as np
from hama.asr import ASRModel

import intaglio
from intaglio.bundle.bundle import Bundle
from intaglio.processes.temporary import scratch_directory
from intaglio.runtime.speech.audio_file import read_audio
from intaglio.runtime.speech.recognizer import SpeechRecognizer
from intaglio.runtime.speech.recording_list import recordings_of
from intaglio.samples.speech_samples import recordings

RATE = 16000


@click.command()
@click.argument("places", nargs=-1, type=click.Path(path_type=Path, exists=True))
def main(places: tuple[Path, ...]) -> None:
    """Compare on PLACES, too."""
    samples = [(each.name, each.samples) for each in recordings()]
    for place in places:
        samples += [(each.path.name, read_audio(each.path, RATE)) for each in recordings_of(place, "argument")]
    library = ASRModel()
    assets = Path(str(resources.files("hama").joinpath("assets")))
    differences, same = [], 0
    with scratch_directory("hama") as folder:
        intaglio.convert(assets / "asr_waveform.hama", folder / "checkpoint")
        intaglio.export(folder / "checkpoint", folder / "bundle", check=False)
        with SpeechRecognizer(Bundle.open(folder / "bundle")) as recognizer:
            for name, each in samples:
                lengths = np.array([len(each)])
                feeds = {"waveform": each[None], "waveform_lengths": lengths}
                expected, frames = library.session.run(["log_probs", "out_lengths"], feeds)
                found, _ = recognizer.log_probs(each[None], lengths)
                difference = np.abs(found - expected)
                differences.append(difference.ravel())
                reference = library._decode_single(expected[0], int(frames[0])).phonemes
                tokens = recognizer.transcribe_samples([each]).tokens
                equal = [token.text for token in tokens if token.text != "<wb>"] == reference
                same += equal
                click.echo(f"{name:40} {len(each) / RATE:6.2f} s  largest {difference.max():.1e}  same {equal}")
    every = np.concatenate(differences)
    click.echo(f"{same} of {len(samples)} recordings have the same phonemes")
    click.echo(
        f"log-probabilities within 1e-3: {(every <= 1e-3).mean():.3%} of {every.size}; largest {every.max():.1e}"
    )


if __name__ == "__main__":
    main()
