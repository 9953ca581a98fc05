"""The built-in sandbox: processes of this machine, behind what its kernel offers to keep them in."""
