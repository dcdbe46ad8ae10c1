"""The command lines: flags and the environment become configuration objects."""
