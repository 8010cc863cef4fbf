"""Build the wheel, install it away from this tree, and use it there.

Only parsimax itself is installed, into an empty folder; torch and the rest come from the
environment that runs this script.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from zipfile import ZipFile

ROOT = Path(__file__).resolve().parent.parent

USE = """
import sys
from pathlib import Path
import torch
import parsimax as px

home = Path(px.__file__).resolve().parent
assert home.parent == Path(sys.argv[1]).resolve(), f"imported from {home}, not from the wheel"
assert (home / "py.typed").is_file(), "py.typed is missing"
p = px.entmax(torch.tensor([2.0, 1.0, -1.0]), alpha=1.5)
assert abs(p.sum().item() - 1) < 1e-6 and p[2] == 0, p
print(f"px.entmax works from the wheel: {p.tolist()}")
"""


def main() -> None:
    """Run the check; any failure ends the process with a non-zero status."""
    with tempfile.TemporaryDirectory(prefix="parsimax-wheel-") as folder:
        dist, site = Path(folder, "dist"), Path(folder, "site")
        run(
            "-m", "build", "--wheel", "--no-isolation", "--outdir", str(dist), str(ROOT), quiet=True
        )
        (wheel,) = dist.glob("*.whl")
        check_contents(wheel)
        run("-m", "pip", "install", "--quiet", "--no-deps", "--no-index",
            "--disable-pip-version-check", "--target", str(site), str(wheel))  # fmt: skip
        # PYTHONPATH comes before the environment's own, where parsimax is this source tree.
        run("-c", USE, str(site), cwd=folder, path=site)
        run(str(site / "bin" / "parsimax"), "--version", cwd=folder, path=site)


def check_contents(wheel: Path) -> None:
    """Every file of the package is in the wheel, and nothing else."""
    package = ROOT / "src" / "parsimax"
    files = {
        path.relative_to(package.parent).as_posix()
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    packed = {name for name in ZipFile(wheel).namelist() if ".dist-info/" not in name}
    if packed != files:
        sys.exit(f"{wheel.name} differs from src/parsimax in {sorted(packed ^ files)}")
    print(f"{wheel.name}: {len(packed)} files, {wheel.stat().st_size / 1000:.0f} kB")


def run(*arguments: str, cwd: str = ".", path: Path | None = None, quiet: bool = False) -> None:
    """Run this Python with the arguments; a failure shows its output and ends the check."""
    environment = {**os.environ, "PYTHONPATH": str(path)} if path else None
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env=environment,
        stdout=subprocess.PIPE if quiet else None,
        stderr=subprocess.STDOUT if quiet else None,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{done.stdout or ''}failed: python {' '.join(arguments[:3])} ...")


if __name__ == "__main__":
    main()
