"""Writes the checkpoint's model card, and holds the checkpoint to the digests in it."""

import hashlib
import json
from pathlib import Path

from tools.demo_model.cases import GROUPS

SHIPPED = Path(__file__).parents[2] / "weights" / "demo"
"""Where the repository keeps the checkpoint."""

CARD = "README.md"
SCORES = "scores.json"
"""What `score` measured, beside the weights; the card repeats it in words."""

_HEAD = """\
---
library_name: diffusers
license: apache-2.0
---

# reelmesh demo: a tiny MiniMax-H3 trained from scratch

The real MiniMax-H3 classes with {weights:.1f} million weights, trained from nothing on clips that a
program draws. It follows its prompt in a small world, in seconds on a laptop's CPU. It holds
nothing of the released MiniMax-H3's weights.

**World.** 128x128 pixels, 124 frames at 24 a second, 32 kHz stereo. One or two shapes (circle,
square, triangle, star) in red, orange, yellow, green, cyan, blue, purple or white, small, medium or
large, on a plain or a gradient ground; they move right, left, up or down, bounce, orbit, grow,
shrink or rest, and sound as a low, middle or high tone, as beeps, as a wash of noise or not at all.
The sound comes from where the first object is; beeps mark the touches of a bouncing one. Prompts
in English and in Chinese.

**Training data.** Rendered on the fly by `tools/demo_model`; no recorded pictures, sounds or text.
One in nine combinations of colour, shape and motion was never drawn, for the VAEs neither.

**Limits.** It knows this world and nothing else: other words fall back to pieces it has not
learnt. Other canvases and other lengths than 128x128 and 124 frames were not trained. Pictures act
through their latents alone, the text encoder sees none of them. A reference video was trained at
39 frames, a reference sound at two seconds, each with one object. Fewer than 8 evaluations lose
quality, as they do in the real model. The video VAE draws patches of 16 pixels: the gradient across
their borders is 1.04 times that elsewhere in its round trip of 35.3 dB, and outlines are a little
softer there. What bounces is blurred, so that its outline can be hard to tell by eye.
"""


def write(folder: Path) -> None:
    """Write the card of the checkpoint in `folder` from its files and its scores, if measured."""
    weights = sorted(folder.glob("*/*.safetensors"))
    size = sum(path.stat().st_size for path in weights)
    parts = [_HEAD.format(weights=size / 2 / 1e6)]
    scores = folder / SCORES
    if scores.exists():
        parts.append("\n## Scores\n\n" + table(json.loads(scores.read_text())))
    lines = [
        f"| `{path.relative_to(folder).as_posix()}` | {path.stat().st_size:,} | `{digest(path)}` |"
        for path in weights
    ]
    heading = "\n## Files\n\n| file | bytes | SHA-256 |\n|---|---|---|\n"
    parts.append(heading + "\n".join(lines) + "\n")
    (folder / CARD).write_text("".join(parts))


def add_scores(folder: Path, rows: list[dict[str, str]]) -> None:
    """Write the card with `rows`, and with those that were measured before of other requests.

    `export` replaces the whole folder, so all of them are of the same weights.
    """
    path = folder / SCORES
    known = json.loads(path.read_text()) if path.exists() else []
    by_key = {(row["what"], int(row["evaluations"])): row for row in [*known, *rows]}
    order = list(GROUPS)
    kept = [by_key[key] for key in sorted(by_key, key=lambda key: (order.index(key[0]), key[1]))]
    path.write_text(json.dumps(kept, indent=2, ensure_ascii=False) + "\n")
    write(folder)


def differing(folder: Path) -> list[str]:
    """Weight files whose digests are not those in the card; files that only one of both has too."""
    named: dict[str, str] = {}
    for line in (folder / CARD).read_text().splitlines():
        cells = [cell.strip(" `") for cell in line.strip("|").split("|")]
        if len(cells) == 3 and cells[0].endswith(".safetensors"):
            named[cells[0]] = cells[2]
    found = {
        path.relative_to(folder).as_posix(): digest(path) for path in folder.glob("*/*.safetensors")
    }
    return sorted(name for name in named | found if named.get(name) != found.get(name))


def digest(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def table(rows: list[dict[str, str]]) -> str:
    """Rows with the same keys as a Markdown table."""
    names = list(rows[0])
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    lines += ["| " + " | ".join(row[name] for name in names) + " |" for row in rows]
    return "\n".join(lines) + "\n"
