"""The RPC server: a main host's buffers and graphs on local devices."""
