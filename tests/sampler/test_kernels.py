"""Triton's kernels compute what stands beside them in torch; here in Triton's interpreter."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

# Run in a process of its own: Triton decides when it is imported whether it interprets.
CASES = """
import json, torch
from services.sampler.fused import kernels as k

generator = torch.Generator().manual_seed(1)

def draw(*size, dtype):
    return torch.randn(size, generator=generator).to(dtype)

def distance(ours, theirs):
    return float((ours.float() - theirs.float()).abs().max() / theirs.float().abs().max())

found = {}
for dtype in (torch.float32, torch.bfloat16):
    # No width is a power of two, and no table begins where its storage does.
    rows, channels = 7, 48
    hidden, branch, weight = (draw(*size, dtype=dtype) for size in ((7, 48), (7, 48), (48,)))
    index = torch.tensor([0, 5, 2, 2, 1, 4, 3])
    first = k.Modulation(draw(2, 6, 6 * 48, dtype=dtype)[1], index, 0, 1, 2)
    second = k.Modulation(draw(2, 6, 6 * 48, dtype=dtype)[1], index.flip(0), 3, 4, 5)
    exact = dtype == torch.float32
    ours = k.launch_add_norm_modulate(hidden, None, first, weight, 1e-5, first)
    found[f"norm_modulate {dtype}"] = distance(
        ours[1], k.norm_modulate(hidden, weight, 1e-5, first)
    )
    ours = k.launch_add_norm_modulate(hidden, branch, first, weight, 1e-5, second)
    theirs = k.add_norm_modulate(hidden, branch, first, weight, 1e-5, second)
    found[f"add {dtype}"] = distance(ours[0], theirs[0])
    found[f"add_norm_modulate {dtype}"] = distance(ours[1], theirs[1])
    # 11 heads are no whole number of what a program takes; the heads lie in a wider tensor.
    heads = draw(5, 3, 11 * 16, dtype=dtype)[:, 1].unflatten(-1, (11, 16))
    angles = draw(5, 6, dtype=torch.float32).repeat(1, 2)
    rest = (draw(16, dtype=dtype), 1e-5, angles.cos(), angles.sin())
    found[f"norm_rotate {dtype}"] = distance(
        k.launch_norm_rotate(heads, *rest), k.norm_rotate(heads, *rest)
    )
    both = draw(3, 2 * 100, dtype=dtype)
    found[f"gate_silu {dtype}"] = distance(k.launch_gate_silu(both), k.gate_silu(both))
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def distances() -> dict[str, float]:
    """How far each kernel is from its torch, of the largest value."""
    root = Path(__file__).parent.parent.parent
    done = subprocess.run(
        [sys.executable, "-c", CASES],
        env={"TRITON_INTERPRET": "1", "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, float] = json.loads(done.stdout)
    return found


def test_kernels_compute_their_torch(distances: dict[str, float]) -> None:
    """Within rounding of the tensors' own precision, bf16's torch rounding more often."""
    assert len(distances) == 10
    for name, distance in distances.items():
        assert distance < (2e-6 if "float32" in name else 2e-2), name
