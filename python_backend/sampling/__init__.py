"""Keyed noise, logit processors and acceptance: numpy only, shared by every engine."""
