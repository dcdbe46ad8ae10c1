"""Helpers that several rooms of tests share."""
