"""The device contract across a network: the wire, the client and the worker."""
