"""Property tests have no deadline for one example: the machine may be shared."""

from hypothesis import settings

settings.register_profile("shared machine", deadline=None)
settings.load_profile("shared machine")
