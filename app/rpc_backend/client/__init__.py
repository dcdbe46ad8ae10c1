"""A remote worker's devices, seen as devices of the main host."""
