"""Requests become tokens: scheduler, slots, KV cache, placement, weights, health."""
