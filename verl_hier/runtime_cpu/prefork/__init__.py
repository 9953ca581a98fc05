"""Ray's worker processes as forks of one process that has imported PyTorch and transformers already.

A run on the CPU starts about ten Ray workers, and each of them imports verl with PyTorch and transformers: ten seconds
of processor time and several hundred megabytes, again and again. Here one process, the *template* (`template.py`), does
these imports once: a fork of the driver where we start the driver (`__main__.py`), and a process that the driver starts
beside itself under verl's own entry point. Ray then runs `worker.py` instead of the Python interpreter
(`py_executable` of its runtime environment), which asks the template for a fork of itself. Where there is no template,
as on the other nodes of a cluster, or where the worker's environment differs from the template's in a variable that
matters at import, `worker.py` starts the interpreter as Ray would have done.
"""
