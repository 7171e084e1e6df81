"""How similar neighbouring frames are after each block of a speech recogniser (thesis, figure 5.3), and the picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from intaglio.display.charts import ChartAxis, Kind, Line, Panel, chart, ticks
from intaglio.exporters.checkpoints.checkpoint import Checkpoint
from intaglio.exporters.kinds import find_kind

DISTANCES = (1, 2, 4)  # frames
KINDS: tuple[Kind, ...] = ("ours", "peer", "other", "exact")
Samples = npt.NDArray[np.float32]
Similarities = dict[int, list[float]]  # distance in frames -> mean cosine similarity after each block


@torch.inference_mode()
def frame_similarity(checkpoint: Path, recordings: Sequence[Samples]) -> Similarities:
    """The mean cosine similarity of frames at each of `DISTANCES`, of all `recordings` (16 kHz, float32 [samples])."""
    opened = Checkpoint.open(str(checkpoint))
    kind, family = find_kind(opened.config, str(checkpoint))
    assert kind.load is not None
    network = kind.load(opened, family)
    states: list[Tensor] = []

    def keep(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        states.append(output[0])  # [frames, width] of the only row

    layers = network.encoder.get_submodule("layers")
    hooks = [layer.register_forward_hook(keep) for layer in layers.children()]
    totals = {distance: np.zeros(len(hooks)) for distance in DISTANCES}
    pairs = {distance: np.zeros(len(hooks)) for distance in DISTANCES}
    for audio in recordings:
        states.clear()
        network(torch.from_numpy(audio)[None], torch.tensor([len(audio)]))
        for block, state in enumerate(states):
            for distance in DISTANCES:
                similarity = nn.functional.cosine_similarity(state[distance:], state[:-distance], dim=1)
                totals[distance][block] += float(similarity.sum())
                pairs[distance][block] += len(similarity)
    for hook in hooks:
        hook.remove()
    return {distance: (totals[distance] / pairs[distance]).tolist() for distance in DISTANCES}


def picture(found: Mapping[str, Similarities]) -> str:
    """The text of an SVG file: a panel for each distance, a line for each network."""
    blocks = max(len(values) for similarities in found.values() for values in similarities.values())
    lowest = min(value for similarities in found.values() for values in similarities.values() for value in values)
    low = min(0.0, np.floor(lowest * 5) / 5)
    heights = np.linspace(low, 1, round((1 - low) / 0.2) + 1)
    panels = []
    for distance in DISTANCES:
        lines = [
            Line(name, kind, np.arange(1.0, len(similarities[distance]) + 1), np.array(similarities[distance]))
            for (name, similarities), kind in zip(found.items(), KINDS, strict=False)
        ]
        title = "Frames next to each other" if distance == 1 else f"Frames {distance} apart"
        axes = ChartAxis("block", ticks(range(1, blocks + 1))), ChartAxis("cosine similarity", ticks(heights, 1))
        panels.append(Panel(title, *axes, lines, 160))
    return chart("Cosine similarity of neighbouring frames after each block of two speech recognisers", panels)
