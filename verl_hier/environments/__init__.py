"""The interface of environments, the processes that run them, and their recovery by replay."""
