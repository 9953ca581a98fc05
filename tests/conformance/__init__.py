"""Recorded cases of released implementations, and the adapters that run them through the plugins."""
