"""XLM-RoBERTa (Conneau et al., 2020): RoBERTa over a vocabulary of many languages."""

from intaglio.exporters.encoders.roberta import roberta

FAMILY = roberta("xlm-roberta", "XLMRoberta")
