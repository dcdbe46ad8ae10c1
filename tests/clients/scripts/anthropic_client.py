"""The official Anthropic client: a message whole, streamed and counted, and a tool that it must
call. Called by test_anthropic.py with the server's address.
"""

import json
import sys

from anthropic import Anthropic, BadRequestError

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
WEATHER = {
    "name": "get_weather",
    "description": "The weather in a city",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
        "required": ["city"],
    },
}


def main(url: str) -> dict[str, object]:
    client = Anthropic(base_url=url, api_key="none", max_retries=0)
    plain = {
        "model": "any",
        "messages": QUESTION,
        "max_tokens": 16,
        "extra_body": {"temperature": 0},
    }
    forced = plain | {
        "tools": [WEATHER],
        "tool_choice": {"type": "tool", "name": "get_weather"},
        "max_tokens": 64,
    }
    whole = client.messages.create(system="You are brief.", **plain)
    with client.messages.stream(system="You are brief.", **plain) as stream:
        streamed = "".join(stream.text_stream)
        final = stream.get_final_message()
    call = client.messages.create(**forced)
    with client.messages.stream(**forced) as stream:
        kinds = [event.type for event in stream]
        streamed_call = stream.get_final_message()
    try:
        client.messages.create(**plain | {"max_tokens": -5})
        refusal = ""
    except BadRequestError as error:
        refusal = str(error.body["error"]["type"])
    return {
        "text": whole.content[0].text,
        "stop_reason": whole.stop_reason,
        "output_tokens": whole.usage.output_tokens,
        "streamed": streamed,
        "streamed_output_tokens": final.usage.output_tokens,
        "counted": client.messages.count_tokens(model="any", messages=QUESTION).input_tokens,
        "call": [call.content[-1].type, call.content[-1].name, call.content[-1].input],
        "call_stop_reason": call.stop_reason,
        "streamed_call": streamed_call.content[-1].input,
        "kinds": kinds,
        "refusal": refusal,
    }


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
