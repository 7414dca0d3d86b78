"""A server's parts, built from its settings."""
