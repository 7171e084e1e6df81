"""Weights as lookup tables (SqueezeLLM, thesis, chapter 3), and the outliers stored beside them."""
