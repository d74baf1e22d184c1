"""Policies: weights, tokenizer, chat template."""
