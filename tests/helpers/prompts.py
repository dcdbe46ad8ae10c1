"""A dozen prompts of different kind; the last is longer than Gemma's window of 512 tokens."""

from typing import Final

_STORY = (
    "The keeper of the lighthouse wrote a line for every ship that passed: its name, the colour of "
    "its sails, the hour, and whether it answered the bell. On day {n} he counted {m} of them. "
)

PROMPTS: Final = (
    "The capital of France is",
    "Once upon a time there was a small dragon who",
    "def fibonacci(n):\n    if n < 2:\n        return",
    "Water boils at 100 degrees Celsius, which is",
    "SELECT name, COUNT(*) FROM users WHERE age >",
    "Die Hauptstadt von Deutschland ist",
    "1, 1, 2, 3, 5, 8, 13,",
    "Dear Mr. Smith,\n\nThank you for your letter of 12 March. I am writing to",
    "The three primary colours are red,",
    "Q: Who wrote Hamlet?\nA:",
    "<html>\n<head>\n<title>Welcome</title>\n</head>\n<body>\n<h1>",
    "".join(_STORY.format(n=n, m=3 * n % 17) for n in range(1, 22)) + "On the last day he",
)
LONG_PROMPT: Final = len(PROMPTS) - 1
