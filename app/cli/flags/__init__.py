"""Every flag of llama-serve, declared once: a table for each group, in `table.OPTIONS` together."""
