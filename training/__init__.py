"""Everything that needs gradients, in torch: fine-tuning, pruning, alignment, drafts, sensitivities, speech."""

from intaglio.training.gradients.sensitivity import Sensitivity as Sensitivity
from intaglio.training.gradients.sensitivity import sensitivity as sensitivity
from intaglio.training.integer.train_int8_only import Trained as Trained
from intaglio.training.integer.train_int8_only import train_int8_only as train_int8_only
from intaglio.training.language_models.alignment import Aligned as Aligned
from intaglio.training.language_models.alignment import align as align
from intaglio.training.language_models.pruning import Pruned as Pruned
from intaglio.training.language_models.pruning import prune as prune
from intaglio.training.language_models.train_drafts import TrainedDrafts as TrainedDrafts
from intaglio.training.language_models.train_drafts import train_hidden_transfer as train_hidden_transfer
from intaglio.training.language_models.train_drafts import train_medusa as train_medusa
from intaglio.training.language_models.train_early_exit import TrainedExit as TrainedExit
from intaglio.training.language_models.train_early_exit import TrainedLayer as TrainedLayer
from intaglio.training.language_models.train_early_exit import train_early_exit as train_early_exit
from intaglio.training.speech.results import TrainedSpeech as TrainedSpeech
from intaglio.training.speech.spoken_words import number_words as number_words
from intaglio.training.speech.spoken_words import spoken as spoken
from intaglio.training.speech.train_speech import train_speech as train_speech
from intaglio.training.train_ngram import TrainedNgram as TrainedNgram
from intaglio.training.train_ngram import train_ngram as train_ngram
