"""RoBERTa (Liu et al., 2019): BERT without token types; positions count from the padding token's id."""

from intaglio.exporters.encoders.family import EncoderFamily
from intaglio.exporters.files.config import integer


def roberta(model_type: str, prefix: str) -> EncoderFamily:
    """A family whose classes in `transformers` are RoBERTa's under the names that begin with `prefix`."""
    return EncoderFamily(
        model_type=model_type,
        architecture=f"{prefix}Model",
        tasks={
            f"{prefix}Model": "encode",
            f"{prefix}ForMaskedLM": "fill-mask",
            f"{prefix}ForSequenceClassification": "classify",
            f"{prefix}ForTokenClassification": "token-classification",
            f"{prefix}ForQuestionAnswering": "question-answering",
        },
        inputs=("input_ids", "attention_mask"),
        # The first position is pad_token_id + 1, so that number of rows of the position table is never used.
        max_length=lambda config: (
            integer(config, "max_position_embeddings", 3) - integer(config, "pad_token_id", 0, default=1) - 1
        ),
        blocks="encoder.layer",
        has_pooler=True,
        pad_token_id=1,
    )


FAMILY = roberta("roberta", "Roberta")
