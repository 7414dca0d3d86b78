"""Fitting drafters: recipes, losses, unrolling, the training loop, publishing."""
