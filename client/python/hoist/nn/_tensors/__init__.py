"""The tensors of a weight: idle, resident, lent, rebuilt."""
