"""The present form of weights: one group, and its tensors in modules."""
