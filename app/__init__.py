"""llama-serve: one model over many machines, served with the OpenAI API."""
