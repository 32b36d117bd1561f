"""Eight frames of a clip side by side, for a page that cannot play it.

`python -m tools.demo_model.strip out/demo.mp4 docs/images/demo.png`
"""

import argparse
from pathlib import Path

import numpy as np
from PIL import Image

from tools.demo_model import mp4

_SHOWN = 8


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("clip", type=Path, help="an MP4")
    parser.add_argument("picture", type=Path, help="the PNG to write")
    options = parser.parse_args()
    frames, _, _ = mp4.decode(options.clip)
    shown = [frames[round(at)] for at in np.linspace(0, len(frames) - 1, _SHOWN)]
    options.picture.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.concatenate(shown, axis=1)).save(options.picture)


if __name__ == "__main__":
    main()
