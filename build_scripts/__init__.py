"""Command-line programs behind the Makefile."""
