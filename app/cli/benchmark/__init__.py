"""Pieces of llama-serve-bench: flags → cases → measurements → tables."""
