"""Programs that a user runs against a server. They know the wire only: names, dtypes and shapes in `wire.py`."""
