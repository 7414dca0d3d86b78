"""How many drafts of which sequence are verified: pure numpy, no Triton, no torch."""
