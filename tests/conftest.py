"""Settings shared by all tests."""

from hypothesis import settings

# Times on a shared machine vary too much to be a verdict on one example.
settings.register_profile("shared_machine", deadline=None)
settings.load_profile("shared_machine")
