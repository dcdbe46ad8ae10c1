"""LangChain's OpenAI chat model: an answer, a stream, a tool that it must call, a result handed
back, and an answer by a schema. Called by test_langchain.py with the server's address.
"""

import json
import sys

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import StructuredTool
from langchain_openai import ChatOpenAI

QUESTION = "What is the weather in Paris?"
SCHEMA = {
    "title": "Place",
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}


def add(left: int, right: int) -> int:
    """Add two numbers."""
    return left + right


def main(url: str) -> dict[str, object]:
    model = ChatOpenAI(
        base_url=f"{url}/v1",
        api_key="none",
        model="any",
        temperature=0,
        max_tokens=64,
        max_retries=0,
        stream_usage=True,
    )
    tools = [StructuredTool.from_function(add)]
    must_add = model.bind_tools(tools, tool_choice="add")
    ask = HumanMessage("Add two and three.")
    called = must_add.invoke([ask])
    pieces = list(must_add.stream([ask]))
    merged = pieces[0]
    for piece in pieces[1:]:
        merged += piece
    result = ToolMessage("5", tool_call_id=called.tool_calls[0]["id"])
    after = model.bind_tools(tools, tool_choice="none").invoke([ask, called, result])
    streamed = list(model.stream(QUESTION))
    return {
        "text": model.invoke(QUESTION).content,
        "streamed": "".join(chunk.content for chunk in streamed),
        "usage": next(c.usage_metadata for c in streamed if c.usage_metadata)["output_tokens"],
        "call": called.tool_calls[0]["name"],
        "arguments": called.tool_calls[0]["args"],
        "streamed_call": merged.tool_calls[0]["name"],
        "streamed_arguments": merged.tool_calls[0]["args"],
        "invalid_calls": [*called.invalid_tool_calls, *merged.invalid_tool_calls],
        "after": after.content,
        "structured": model.with_structured_output(SCHEMA, method="json_schema").invoke(QUESTION),
    }


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
