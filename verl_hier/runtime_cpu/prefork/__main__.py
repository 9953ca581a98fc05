"""`python -m verl_hier.runtime_cpu.prefork MODULE …`: like `python -m MODULE …`, with the template forked off first.

`compat/launch.py` starts the driver of a run in this way, so that a small machine imports the libraries once for the
driver and all workers. On a machine with accelerators nothing is forked.
"""

import runpy
import sys

from verl_hier.runtime_cpu.activation import forget_visible_devices, is_wanted
from verl_hier.runtime_cpu.prefork.driver import fork_template, is_switched_off

if __name__ == "__main__":
    sys.argv = sys.argv[1:]
    if is_wanted():
        forget_visible_devices()
        if not is_switched_off():
            fork_template()
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
