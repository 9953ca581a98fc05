"""verl's files are what pip installed, whatever has run before; a recipe without us does not see us."""

from __future__ import annotations

import base64
import hashlib
import os
import subprocess
import sys
from importlib.metadata import distribution


def test_installed_verl_is_unmodified():
    changed = []
    for file in distribution("verl").files or []:
        if file.hash is None:
            continue
        digest = hashlib.new(file.hash.mode, file.locate().read_bytes()).digest()
        if base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != file.hash.value:
            changed.append(str(file))
    assert not changed


def test_importing_verl_with_us_installed_changes_no_registry():
    """Our entry point is loaded by `import verl`; estimators, losses and trainers of stock verl stay as they are."""
    script = (
        "import verl; from verl.trainer.ppo import core_algos;"
        "from verl.trainer.ppo.v1.trainer_base import TRAINER_REGISTRY;"
        "print(sorted(map(str, core_algos.ADV_ESTIMATOR_REGISTRY)), sorted(core_algos.POLICY_LOSS_REGISTRY),"
        "[name for name in sorted(TRAINER_REGISTRY) if not name.startswith('hier_')])"
    )
    # Without our plugin nobody registers a platform called cpu; verl's own choice is the same in both then.
    plain = {name: value for name, value in os.environ.items() if name != "VERL_PLATFORM"}
    with_us, without = (
        subprocess.run(
            [sys.executable, "-c", script],
            env={**plain, "VERL_USE_EXTERNAL_PLUGINS": policy},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()[-1]
        for policy in ("auto", "none")
    )
    assert with_us == without
