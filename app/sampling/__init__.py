"""Logits become a token: the sampler chain, grammars, log-probabilities."""
