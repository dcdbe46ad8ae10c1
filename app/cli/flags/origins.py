"""Which web pages may call the server, where that follows from more than one flag."""

from typing import Final

from app.cli.flags.parser import Parsed

_PAGE_TOOLS: Final = (
    "ignored:--tools",
    "ignored:--mcp-servers-config",
    "ignored:--mcp-servers-json",
    "ignored:-ag",
)
"""Flags of llama-server that give its page tools; here they have no other effect."""


def cors_origins(parsed: Parsed) -> str:
    """Return what the flag says; without it, pages elsewhere are not let at what reaches beyond the
    model: llama-server thinks so of its tools, and so do those who only know its flags.
    """
    reaches_far = parsed.flag("ui_mcp_proxy") or any(map(parsed.is_given, _PAGE_TOOLS))
    if reaches_far and not parsed.is_given("cors_origins"):
        return "localhost"
    return parsed.text("cors_origins")
