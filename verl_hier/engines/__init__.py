"""Training engines: forward and backward over a tree of rows, each shared token once."""
