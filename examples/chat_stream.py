"""Stream a chat with the OpenAI client: python examples/chat_stream.py "Why is the sky blue?"

Needs `pip install openai`. BASE_URL and API_KEY in the environment name another server.
"""

import os
import sys

from openai import OpenAI


def main(question: str) -> None:
    """Ask one question and print the answer as it comes, then what it took."""
    client = OpenAI(
        base_url=os.environ.get("BASE_URL", "http://127.0.0.1:8080/v1"),
        api_key=os.environ.get("API_KEY", "none"),
    )
    stream = client.chat.completions.create(
        model="default",
        messages=[{"role": "user", "content": question}],
        stream=True,
        stream_options={"include_usage": True},
    )
    for chunk in stream:
        for choice in chunk.choices:
            print(choice.delta.content or "", end="", flush=True)
        if chunk.usage is not None:
            used = chunk.usage
            print(f"\n[{used.prompt_tokens} prompt + {used.completion_tokens} answer tokens]")


if __name__ == "__main__":
    main(" ".join(sys.argv[1:]) or "Why is the sky blue?")
