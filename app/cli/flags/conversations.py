"""Flags about conversations: they become ChatSettings, one of them a part of RequestDefaults."""

from typing import Final

from app.cli.flags import readers
from app.cli.flags.option import Group, Option

CHAT: Final = Group(
    "conversations",
    (
        Option(
            dest="jinja",
            names=("--jinja",),
            off_names=("--no-jinja",),
            env="LLAMA_ARG_JINJA",
            default=True,
            help="allow tools in conversations",
        ),
        Option(
            dest="chat_template",
            names=("--chat-template",),
            read=readers.text,
            metavar="JINJA_TEMPLATE",
            env="LLAMA_ARG_CHAT_TEMPLATE",
            help="template of conversations, or the name of a known one, instead of the model's",
        ),
        Option(
            dest="chat_template_file",
            names=("--chat-template-file",),
            read=readers.text,
            metavar="FNAME",
            env="LLAMA_ARG_CHAT_TEMPLATE_FILE",
            help="file with the template of conversations",
        ),
        Option(
            dest="chat_template_kwargs",
            names=("--chat-template-kwargs",),
            read=readers.text,
            metavar="JSON",
            env="LLAMA_ARG_CHAT_TEMPLATE_KWARGS",
            help="JSON object of further values for the template",
        ),
        Option(
            dest="prefill_assistant",
            names=("--prefill-assistant",),
            off_names=("--no-prefill-assistant",),
            env="LLAMA_ARG_PREFILL_ASSISTANT",
            default=True,
            help="continue a last message of the assistant",
        ),
        Option(
            dest="reasoning",
            names=("-rea", "--reasoning"),
            read=readers.on_off_auto,
            metavar="[on|off|auto]",
            env="LLAMA_ARG_REASONING",
            default="auto",
            help="whether the template lets the model think",
        ),
        Option(
            dest="reasoning_effort",
            names=("--reasoning-effort",),
            read=readers.text,
            metavar="LEVEL",
            env="LLAMA_ARG_REASONING_EFFORT",
            default="default",
            help="effort that the template is told: default, none, low, medium, high …",
        ),
        Option(
            dest="reasoning_format",
            names=("--reasoning-format",),
            read=readers.one_of("none", "auto", "deepseek", "deepseek-legacy"),
            metavar="FORMAT",
            env="LLAMA_ARG_THINK",
            default="auto",
            help="none leaves reasoning in the content, the others tell it as reasoning_content",
        ),
        Option(
            dest="reasoning_budget",
            names=("--reasoning-budget",),
            read=readers.within(-1),
            metavar="N",
            env="LLAMA_ARG_THINK_BUDGET",
            default=-1,
            help="tokens for reasoning, after which it is ended; -1 for no limit",
        ),
        Option(
            dest="reasoning_budget_message",
            names=("--reasoning-budget-message",),
            read=readers.text,
            metavar="MESSAGE",
            env="LLAMA_ARG_THINK_BUDGET_MESSAGE",
            help="text that is put before the end of reasoning that was too long",
        ),
        Option(
            dest="skip_chat_parsing",
            names=("--skip-chat-parsing",),
            off_names=("--no-skip-chat-parsing",),
            env="LLAMA_ARG_SKIP_CHAT_PARSING",
            default=False,
            help="leave reasoning and tool calls in the content as the model wrote them",
        ),
        Option(
            dest="special",
            names=("-sp", "--special"),
            default=False,
            help="write control tokens out in answers",
        ),
    ),
)
