"""Build the page of `verl-hier view` from `page/src` into `verl_hier/viewer/bundle`; needs Node 20 or newer.

python scripts/page.py            # write the bundle
python scripts/page.py --check    # change nothing; exit with 1 if the bundle is not what the sources make
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "page"
BUNDLE = ROOT / "verl_hier" / "viewer" / "bundle"
NAMES = ("page.js", "page.css", "LICENSES.txt")


def build(target: Path) -> None:
    """Check the types of the sources and bundle them with the licences of what is in the bundle."""
    if not (PAGE / "node_modules" / ".package-lock.json").exists():
        subprocess.run(["npm", "ci", "--no-audit", "--no-fund"], cwd=PAGE, check=True)
    subprocess.run(["npx", "--no-install", "tsc", "--noEmit"], cwd=PAGE, check=True)
    meta = target / "meta.json"
    for entry, name in (("main.tsx", "page.js"), ("page.css", "page.css")):
        command = ["npx", "--no-install", "esbuild", f"src/{entry}", "--bundle", "--minify", "--format=iife"]
        command += ["--target=es2022", "--legal-comments=none", f"--outfile={target / name}", "--log-level=warning"]
        subprocess.run([*command, *([f"--metafile={meta}"] if name == "page.js" else [])], cwd=PAGE, check=True)
    inputs = json.loads(meta.read_text())["inputs"]
    meta.unlink()
    (target / "LICENSES.txt").write_text(licences(inputs), encoding="utf-8")


def licences(inputs: dict[str, object]) -> str:
    """The licence of each package that a file of the bundle comes from."""
    packages = set()
    for name in inputs:
        _, inside, rest = name.rpartition("node_modules/")
        if inside:
            packages.add("/".join(rest.split("/")[: 2 if rest.startswith("@") else 1]))
    parts = []
    for package in sorted(packages):
        folder = PAGE / "node_modules" / package
        about = json.loads((folder / "package.json").read_text(encoding="utf-8"))
        files = sorted(file for file in folder.iterdir() if file.name.lower().startswith(("license", "licence")))
        text = files[0].read_text(encoding="utf-8").strip() if files else f"Licence: {about['license']}"
        parts.append(f"{package} {about['version']} ({about['license']})\n\n{text}\n")
    return ("\n" + "-" * 80 + "\n\n").join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the page of `verl-hier view`.")
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 if the bundle is stale")
    if not parser.parse_args().check:
        BUNDLE.mkdir(exist_ok=True)
        build(BUNDLE)
        return
    with tempfile.TemporaryDirectory() as folder:
        build(Path(folder))
        stale = [name for name in NAMES if (BUNDLE / name).read_bytes() != (Path(folder) / name).read_bytes()]
    if stale:
        sys.exit(f"{', '.join(stale)} of {BUNDLE} is not what page/src makes: run python scripts/page.py.")


if __name__ == "__main__":
    main()
