"""A hostile client and a hostile worker, for `python -m tests.fuzz` and the short tests."""
