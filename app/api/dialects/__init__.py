"""The forms of an answer: llama-server's own, OpenAI's three, Anthropic's."""
