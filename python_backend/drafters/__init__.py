"""Drafters, shared by training and serving."""
