"""BERT (Devlin et al., 2019), and encoders with the same structure: MiniLM, BGE, E5, GTE."""

from intaglio.exporters.encoders.family import EncoderFamily
from intaglio.exporters.files.config import integer

FAMILY = EncoderFamily(
    model_type="bert",
    architecture="BertModel",
    tasks={
        "BertModel": "encode",
        "BertForMaskedLM": "fill-mask",
        "BertForSequenceClassification": "classify",
        "BertForTokenClassification": "token-classification",
        "BertForQuestionAnswering": "question-answering",
        "BertForNextSentencePrediction": "classify",
    },
    inputs=("input_ids", "attention_mask", "token_type_ids"),
    max_length=lambda config: integer(config, "max_position_embeddings", 1),
    blocks="encoder.layer",
    has_pooler=True,
    counts_padding=True,
)
