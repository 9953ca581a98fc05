"""Token-in-token-out generation with a transformers model: batching, KV slots, prefix cache, sampling."""
