"""Bytes to and from messages: no socket, no thread, no torch."""
