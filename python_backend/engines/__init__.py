"""Engines behind the step protocol."""
