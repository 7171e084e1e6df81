"""CamemBERT (Martin et al., 2020): RoBERTa for French."""

from intaglio.exporters.encoders.roberta import roberta

FAMILY = roberta("camembert", "Camembert")
