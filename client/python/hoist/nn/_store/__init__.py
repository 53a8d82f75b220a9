"""Groups on their way to hoistd and back; the session."""
