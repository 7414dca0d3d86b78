"""Drafter training: the target writes the corpus, drafters learn from it."""
