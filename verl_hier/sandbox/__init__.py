"""Isolated execution of Python that a model wrote: the interface of providers, and the choice of one."""
