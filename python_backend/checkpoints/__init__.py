"""Models on disk: shapes of decoders, weights and their quantised formats, tokenizers."""
