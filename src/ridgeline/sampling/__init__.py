"""From logits to a token: logits processors, selection, counter-based randomness, logprobs."""
