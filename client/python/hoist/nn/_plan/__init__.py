"""Plans and budgets; weights that are read in place."""
