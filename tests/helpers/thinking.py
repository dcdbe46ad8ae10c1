"""A model that thinks and calls tools as Hermes does, for tests of the chat dialects."""

from dataclasses import replace
from typing import Final

from app.api.settings import ChatSettings
from tests.helpers.live_server import SETTINGS

TEMPLATE: Final = (
    "{% for t in tools or [] %}(tool {{ t.function.name }}){% endfor %}"
    "{% for m in messages %}[{{ m.role }}{{ m.tool_call_id or '' }}]"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m.content or '' }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.id }} {{ c.function.name }} "
    "{{ c.function.arguments | tojson }}</tool_call>{% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
THINKS: Final = replace(SETTINGS, chat=ChatSettings(template=TEMPLATE))

PARAMETERS: Final[dict[str, object]] = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
}
THOUGHT: Final = ("<think>I should ", "look.</think>")
TEXT: Final = ("Let me ", "see.")
CALL: Final = (
    "<tool_call>\n",
    '{"name": "get_weather", ',
    '"arguments": {"city": ',
    '"Paris"}}\n',
    "</tool_call>",
)
