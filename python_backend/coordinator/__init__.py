"""The decode loop: queue, draft, prune, verify, commit."""
