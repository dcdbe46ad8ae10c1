"""Chat messages → prompt text, with the template that came with the model.

Used by the API's chat routes from the server's thread pool. Variables and filters are those that
templates written for Hugging Face's `apply_chat_template` expect; a template's own refusal and its
errors become RequestError with the template's line. Rendering runs in a process of its own, see
`template_sandbox`.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Final

from app.tokenizer.template_caps import KEEP_REASONING, Message, TemplateCaps, probe
from app.tokenizer.template_messages import fit_messages
from app.tokenizer.template_sandbox import TemplateSandbox


class ChatTemplate:
    """One template with the texts of BOS and EOS; any thread may render with it.

    `sandbox` may be shared between templates; without one the template has its own.
    """

    def __init__(
        self,
        source: str,
        *,
        bos_token: str,
        eos_token: str,
        sandbox: TemplateSandbox | None = None,
    ) -> None:
        self.source = source
        self.bos_token = bos_token
        self.eos_token = eos_token
        self._sandbox = sandbox or TemplateSandbox()

    @cached_property
    def caps(self) -> TemplateCaps:
        """What the template can take; found out at the first use, in about fifteen renders.

        Raises: TemplateLimitError.
        """
        return probe(lambda messages, extra: self._render(messages, {**extra, **_PROMPT}))

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[object] | None = None,
        add_generation_prompt: bool = True,
        extra: Mapping[str, object] | None = None,
    ) -> str:
        """Return the prompt, BOS text included where the template writes one.

        Content is given to the template in the form it takes: text parts are joined with "\\n" for
        one that wants strings. `extra` are further variables (`chat_template_kwargs`); they win
        over the others.

        Raises:
            RequestError: the template is wrong, refuses the messages, or goes over a limit.
        """
        variables: dict[str, object] = {"add_generation_prompt": add_generation_prompt}
        if tools:
            variables["tools"] = list(tools)
        fitted = fit_messages(messages, self.caps, self.source)
        return self._render(fitted, {**variables, **(extra or {})})

    def close(self) -> None:
        """Stop the rendering process; a later render starts another."""
        self._sandbox.close()

    def _render(self, messages: Sequence[Message], variables: Mapping[str, object]) -> str:
        now = datetime.now()
        context = {
            "messages": [dict(message) for message in messages],
            "bos_token": self.bos_token,
            "eos_token": self.eos_token,
            "enable_thinking": True,
            **KEEP_REASONING,
            "datetime": now.strftime("%b %d %Y"),
            "date_string": now.strftime("%d %b %Y"),
            **variables,
        }
        return self._sandbox.render(self.source, context)


_PROMPT: Final[Mapping[str, object]] = {"add_generation_prompt": True}
