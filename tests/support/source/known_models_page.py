"""What `intaglio models` lists, as the table docs/models.md, which this file writes when it is run."""

from __future__ import annotations

from pathlib import Path

from intaglio.exporters.known_models import KnownModel, models

PAGE = Path(__file__).parents[3] / "docs" / "models.md"
HEAD = """# Models that are known to work

`intaglio models` prints this list. It is written by `make families`, from tests that passed: each exports a small
random checkpoint of a type of models, and compares the bundle with transformers. A type that is not listed may work as
well: every causal language model, every encoder and every model that reads images of transformers can be tried, and an
export is checked against its source model.

*Tested* of decoders: logits (prefill, steps of several tokens, rows of different length, beyond windows), the text
over 40 tokens of a batch, logits after a rollback, and the sensitivity of each weight. Of encoders: the hidden states
and what a pooler returns, and the logits of heads, in batches of one and three texts, and of one that is longer
than windows. Of models that read images: the hidden states and the embedding, the logits of a head, and the scores of
texts for images. Of decoders that read images in their prompts: the embeddings of the images, the logits after images
and text, and the text, with images cut into frames and whole. Of encoder-decoders: the logits, and the texts of a
batch, greedy and by beam search. Of speech recognisers: the log-probabilities of recordings in a batch, or of Whisper
the log-mel features, the encoder and the logits, and the transcripts. *Recipes*: of `compress`. *Strategies*: of
`generate`, whose text equals the greedy one.
*Targets*: `a100` is an engine of TensorRT-RTX, built in float32.
"""


def page(known: list[KnownModel]) -> str:
    """The page, with a table for each task."""
    parts = [HEAD]
    for task in sorted({each.task for each in known}):
        mine = [each for each in known if each.task == task]
        columns = [
            (kind, name)
            for kind in ("tested", "recipes", "strategies", "targets")
            for name in sorted({name for each in mine for name in getattr(each, kind)})
        ]
        parts.append(f"\n## {task}\n\n{len(mine)} types.\n\n")
        parts.append(_row(["model_type", "graph", *(name.removeprefix("tensorrt-rtx ") for _, name in columns)]))
        parts.append(_row(["---"] * (2 + len(columns))))
        for each in mine:
            ticks = ["✓" if name in getattr(each, kind) else "" for kind, name in columns]
            parts.append(_row([f"`{each.model_type}`", each.graph, *ticks]))
    return "".join(parts)


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |\n"


if __name__ == "__main__":
    PAGE.write_text(page(models().models), encoding="utf-8")
