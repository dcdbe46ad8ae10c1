"""Ways for the bytes of a connection to travel: plain TCP, TLS."""
