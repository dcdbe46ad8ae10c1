"""The three forms of an answer: llama-server's own, OpenAI's completions, OpenAI's chat."""
