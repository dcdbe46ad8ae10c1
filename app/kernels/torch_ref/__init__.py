"""The reference kernels: plain torch, one operation at a time."""
