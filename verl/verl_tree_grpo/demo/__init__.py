"""A demo policy of a few million parameters: demonstrations, tokenizer, warm start, checks."""
