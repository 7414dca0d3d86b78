"""The corpus: what the target is asked, what it wrote, shards on disk."""
