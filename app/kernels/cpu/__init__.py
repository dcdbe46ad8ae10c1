"""Kernels for processors: a C++ core without torch, and what Python needs to hand it work."""
