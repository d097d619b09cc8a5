"""Tokenizer: text to token ids and back, chat templates, incremental text, stop strings."""
