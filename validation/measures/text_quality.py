"""Quality of generated texts against references: BLEU and ROUGE."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from intaglio.errors import UsageError
from intaglio.extras import load


class TextQuality(msgspec.Struct):
    """Scores from 0 to 100, over all texts; higher is better."""

    bleu: float  # common n-grams, as sacrebleu counts them, over the whole corpus
    rouge_1: float  # common words, F1, mean over all texts
    rouge_2: float  # common pairs of words
    rouge_l: float  # longest common subsequence


def text_quality(texts: Sequence[str], references: Sequence[str]) -> TextQuality:
    """The quality of `texts`, each against the reference with the same index. Raises `UsageError` without texts."""
    if not texts or len(texts) != len(references):
        raise UsageError(f"{len(texts)} texts and {len(references)} references: expected equal numbers, at least 1.")
    sacrebleu, rouge_scorer = load("sacrebleu"), load("rouge_score.rouge_scorer")
    names = ["rouge1", "rouge2", "rougeL"]
    scorer = rouge_scorer.RougeScorer(names, use_stemmer=False)
    scores = [scorer.score(reference, text) for text, reference in zip(texts, references, strict=True)]
    rouge = [100 * sum(score[name].fmeasure for score in scores) / len(scores) for name in names]
    bleu = sacrebleu.corpus_bleu(list(texts), [list(references)]).score
    return TextQuality(bleu, *rouge)
