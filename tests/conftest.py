"""What all tests share."""

from hypothesis import settings

# The same examples in every run: what fails here fails everywhere.
settings.register_profile("fixed", derandomize=True, deadline=None)
settings.load_profile("fixed")
