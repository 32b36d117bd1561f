"""Scores a checkpoint on held-out requests: `python -m tools.demo_model.score --checkpoint FOLDER`.

Prompts go through a running mesh, and what counts is read from the MP4s that it published. Keyframe
and reference requests go through the library's pipeline.
"""

import argparse
import json
import sys
from pathlib import Path

from tools.demo_model import card, library_clips, tally
from tools.demo_model.cases import GROUPS, cases

_EVALUATIONS = "4,6,8,12,20"


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.demo_model.score", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--count", type=int, default=100, help="clips of each row")
    parser.add_argument("--evaluations", default=_EVALUATIONS, help="such as 4,8")
    parser.add_argument("--only", default="", help="rows whose name begins so, such as t2va")
    parser.add_argument("--least", type=float, help="fail under this share of all four in a row")
    parser.add_argument(
        "--write", action="store_true", help="keep the rows in the model card, beside its others"
    )
    options = parser.parse_args()
    counts = [int(each) for each in options.evaluations.split(",")]
    groups = [name for name in GROUPS if name.startswith(options.only)]
    rows: list[dict[str, str]] = []
    shares: list[float] = []

    def add(group: str, evaluations: int, scored: list[tally.Scored]) -> None:
        rows.append(tally.row(group, evaluations, scored))
        shares.append(sum(each.reading.all_four for each in scored) / len(scored))
        print(json.dumps(rows[-1], ensure_ascii=False), flush=True)

    by_prompt = [name for name in groups if GROUPS[name][0] == "t2va"]
    if by_prompt:
        # Scores through the library alone must not need what a mesh needs.
        from tools.demo_model.mesh_score import score_mesh

        score_mesh(options.checkpoint, by_prompt, counts, options.count, add)
    others = [name for name in groups if name not in by_prompt]
    if others:
        pipeline = library_clips.load(options.checkpoint)
        for evaluations in counts:
            for name in others:
                scored = [
                    tally.score(case, *library_clips.generate(pipeline, case, evaluations))
                    for case in cases(name, options.count)
                ]
                add(name, evaluations, scored)
    print(card.table(rows))
    if options.write:
        card.add_scores(options.checkpoint, rows)
    return 1 if options.least is not None and min(shares) < options.least else 0


if __name__ == "__main__":
    sys.exit(main())
