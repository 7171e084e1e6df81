"""Cases of the kernels that choose tokens, for `gpu-check`."""

from __future__ import annotations

import numpy as np

from intaglio.plugins.cuda.launching.geometry import Launch
from intaglio.plugins.kernel_check.case import Array, Cases, KernelCase
from intaglio.plugins.kernel_check.inputs import Random, Sizes
from intaglio.plugins.native import logit_mask
from intaglio.plugins.native.token_choice import DRAW_BITS, Filters, launch, reference
from intaglio.plugins.native.token_choice.edits import EDIT, edited
from intaglio.plugins.native.token_choice.settings import HIGHEST, Choice, packed

ROWS, LIKELIEST = 3, 40
# Of users: greedy with penalties, the whole distribution, and each filter.
FILTERS = (HIGHEST, Filters.of(1.0), Filters.of(0.7, 0, 0.9), Filters.of(0.6, 20, 0.95), Filters.of(1.5, 0, 1.0, 0.05))


def cases(sizes: Sizes, random: Random) -> Cases:
    """Rows of a vocabulary, with and without a mask and edits."""
    for vocabulary in (sizes.width, sizes.width - 1, sizes.vocabulary):
        logits = (3 * random.standard_normal((ROWS, vocabulary + 1))).astype(np.float32)
        rows, stride = logits[:, :vocabulary], vocabulary + 1
        sums = np.array([reference.weights(row, Filters.of(1.0)).sum() for row in rows])
        results = rows.argmax(1).astype(np.int32), rows.max(1), sums
        yield _case(launch.summarise(ROWS, vocabulary, stride), [logits], *results)
        found = [reference.likeliest(row, LIKELIEST) for row in rows]
        tokens = np.array([places for places, _ in found], np.int32)
        results = tokens, np.take_along_axis(rows, tokens, 1), sums
        yield _case(launch.likeliest(ROWS, vocabulary, stride, LIKELIEST), [logits], *results)
        weighed = []
        for first in range(0, len(FILTERS), ROWS):
            choices = [_choice(random, vocabulary, filters) for filters in FILTERS[first : first + ROWS]]
            settings, octets, edits = packed([row * stride for row in range(len(choices))], choices)
            scores = np.stack([_scores(row, choice) for row, choice in zip(rows, choices, strict=False)])
            drawn = [
                reference.choose(row, choice.filters, choice.draw) for row, choice in zip(scores, choices, strict=True)
            ]
            given: list[Array] = [logits, settings, octets, edits.view(np.uint8)]
            yield _case(launch.prepare(len(choices), vocabulary), given, scores.view(np.int32))  # some are infinite
            yield _case(launch.choose(len(choices), vocabulary), [scores, settings], np.array(drawn, np.int32))
            weights = reference.weights(scores[1], choices[1].filters)
            weighed.append(np.concatenate([[weights.sum()], weights]))
            yield _case(launch.weigh(vocabulary), [scores[1], settings[1]], weighed[-1])
        target, draft = weighed
        for token in (None, int(target[1:].argmax())):
            left = reference.subtracted(target[1:], draft[1:] if token is None else token)
            work, number = launch.subtract(vocabulary, token), int(random.integers(0, 1 << DRAW_BITS))
            yield _case(work, [target, draft], np.concatenate([target[:1], left]))
            token_drawn = np.array([reference.drawn(left, number)], np.int32)
            yield _case(launch.draw(vocabulary, number), [np.concatenate([target[:1], left])], token_drawn)


def _case(launched: Launch, inputs: list[Array], *results: Array) -> KernelCase:
    return KernelCase(launched.entry, tuple(inputs), {}, place=launch.FOLDER, launched=launched, results=results)


def _choice(random: Random, vocabulary: int, filters: Filters) -> Choice:
    edits = np.zeros(min(vocabulary, 300), EDIT)
    edits["token"] = np.sort(random.choice(vocabulary, len(edits), replace=False))
    edits["repeats"] = random.random(len(edits)) < 0.5
    edits["lowered"], edits["raised"] = random.standard_normal((2, len(edits)))
    octets = random.integers(0, 256, -(-vocabulary // 8)).astype(np.uint8) if random.random() < 0.5 else None
    return Choice(octets, edits, 1.2, filters, 0 if filters is HIGHEST else int(random.integers(0, 1 << DRAW_BITS)))


def _scores(row: Array, choice: Choice) -> Array:
    scores = row if choice.octets is None else logit_mask.apply(row, choice.octets, np.empty_like(row))
    return np.asarray(edited(scores, choice.edits, choice.penalty))
