"""The public calls, and the parts of an attached module."""
