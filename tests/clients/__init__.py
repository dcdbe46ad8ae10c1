"""Clients that other people wrote, asking a server as a user runs it: `pytest -m clients`.

They are installed by `python -m tests.fetch_assets clients`, apart from this project's environment;
Chromium and Prometheus come from the system. Scripts that run in the clients' own environments tell
what they saw as one line of JSON.
"""
