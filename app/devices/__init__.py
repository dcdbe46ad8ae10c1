"""The device contract, the local devices and their executors."""
