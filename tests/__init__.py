"""Tests, room by room as in app/."""
