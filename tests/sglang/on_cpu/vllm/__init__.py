"""Stands in for vLLM, of which SGLang imports one operator on a CPU without AMX."""
