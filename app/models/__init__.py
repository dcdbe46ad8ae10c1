"""Which graph an architecture is: one file per architecture."""
