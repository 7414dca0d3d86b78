"""Keyed noise, logit processors and acceptance."""
