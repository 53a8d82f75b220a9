"""Passes: their calls, turns and backwards."""
