"""Bad input at scale against a running server: `python -m tests.fuzz --help`."""
