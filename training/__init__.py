"""Everything that needs gradients, in torch: fine-tuning, pruning, alignment, drafts, sensitivities, speech."""

from intaglio.training.gradients.sensitivity import Sensitivity, sensitivity
from intaglio.training.integer.train_int8_only import Trained, train_int8_only
from intaglio.training.language_models.alignment import Aligned, align
from intaglio.training.language_models.pruning import Pruned, prune
from intaglio.training.language_models.train_drafts import TrainedDrafts, train_hidden_transfer, train_medusa
from intaglio.training.language_models.train_early_exit import TrainedExit, TrainedLayer, train_early_exit
from intaglio.training.speech.results import TrainedSpeech
from intaglio.training.speech.spoken_words import number_words, spoken
from intaglio.training.speech.train_speech import train_speech
from intaglio.training.train_ngram import TrainedNgram, train_ngram

__all__ = [
    "Aligned",
    "Pruned",
    "Sensitivity",
    "Trained",
    "TrainedDrafts",
    "TrainedExit",
    "TrainedLayer",
    "TrainedNgram",
    "TrainedSpeech",
    "align",
    "number_words",
    "prune",
    "sensitivity",
    "spoken",
    "train_early_exit",
    "train_hidden_transfer",
    "train_int8_only",
    "train_medusa",
    "train_ngram",
    "train_speech",
]
