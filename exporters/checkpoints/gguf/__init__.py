"""Files of llama.cpp: a model in one file, its configuration, tokenizer and weights, most of them quantised."""
