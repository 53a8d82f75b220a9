"""A tree of weights in groups."""
