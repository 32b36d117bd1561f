"""Makes the files that are made from others: the protobuf code and docs/errors.md.

`--check` makes them in a temporary folder and fails on a difference, so that a contract and
its committed code can never disagree.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc

from services.common.rpc.errors import as_markdown

ROOT = Path(__file__).resolve().parent.parent
PROTOS = ROOT / "protos"
ERRORS_DOC = Path("docs/errors.md")


def generate(out: Path) -> list[Path]:
    """Write every generated file below `out`; the paths, relative to it."""
    sources = sorted(str(path) for path in (PROTOS / "reelmesh/v1").glob("*.proto"))
    (out / "protos").mkdir(parents=True, exist_ok=True)
    (out / "docs").mkdir(exist_ok=True)
    well_known = str(Path(protoc.__file__).parent / "_proto")
    targets = [f"--{kind}_out={out / 'protos'}" for kind in ("python", "pyi", "grpc_python")]
    if protoc.main(["protoc", f"-I{PROTOS}", f"-I{well_known}", *targets, *sources]) != 0:
        sys.exit("protoc failed; its messages are above")
    (out / ERRORS_DOC).write_text(as_markdown(), encoding="utf-8")
    made = [path.relative_to(out) for path in (out / "protos").rglob("*_pb2*") if path.is_file()]
    return [*sorted(p for p in made if p.suffix in (".py", ".pyi")), ERRORS_DOC]


def differences() -> list[Path]:
    """Committed generated files that differ from what would be generated now."""
    with tempfile.TemporaryDirectory() as folder:
        fresh = Path(folder)
        paths = set(generate(fresh))
        committed = {
            path.relative_to(ROOT)
            for path in PROTOS.rglob("*_pb2*")
            if path.suffix in (".py", ".pyi")
        }
        return sorted(
            path
            for path in paths | committed
            if not (ROOT / path).is_file()
            or path not in paths
            or (ROOT / path).read_bytes() != (fresh / path).read_bytes()
        )


def main() -> None:
    """The command line: see the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail on a difference, write nothing")
    if not parser.parse_args().check:
        generate(ROOT)
        return
    if stale := differences():
        names = "\n  ".join(str(path) for path in stale)
        sys.exit(f"stale generated files; run `make protos` and commit:\n  {names}")


if __name__ == "__main__":
    main()
