"""What a model writes → content, reasoning and tool calls, for every chat dialect."""
