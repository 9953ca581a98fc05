"""Isolated execution of Python that a model wrote: a provider interface and the local provider."""
