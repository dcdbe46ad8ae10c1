"""Text to and from token ids, and chat templates, from GGUF metadata."""
