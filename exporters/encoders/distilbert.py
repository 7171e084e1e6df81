"""DistilBERT (Sanh et al., 2019): BERT with half the layers, without token types and pooler."""

from intaglio.exporters.encoders.family import EncoderFamily
from intaglio.exporters.files.config import integer

FAMILY = EncoderFamily(
    model_type="distilbert",
    architecture="DistilBertModel",
    tasks={
        "DistilBertModel": "encode",
        "DistilBertForMaskedLM": "fill-mask",
        "DistilBertForSequenceClassification": "classify",
        "DistilBertForTokenClassification": "token-classification",
        "DistilBertForQuestionAnswering": "question-answering",
    },
    inputs=("input_ids", "attention_mask"),
    max_length=lambda config: integer(config, "max_position_embeddings", 1),
    blocks="transformer.layer",
    has_pooler=False,
    counts_padding=True,
)
