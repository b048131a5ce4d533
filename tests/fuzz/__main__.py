"""Fuzz by hand: `python -m tests.fuzz run 10000 [--real] [--first SEED]`, `python -m tests.fuzz make CLIP SEED FILE`,
`python -m tests.fuzz odd 2000 [--headers | --packets] [--first SEED] [--keep FOLDER]`.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from pathlib import Path

import imageio_ffmpeg

from tests.fuzz import numbered_oracle
from tests.fuzz.campaign import fuzz
from tests.fuzz.clips import real, synthesised
from tests.fuzz.mutants import mutant
from tests.fuzz.numbered_oracle import campaign
from tests.fuzz.oddities import Workshop
from tests.recipes import Media
from tests.witness import Ffmpeg


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    verbs = parser.add_subparsers(dest="verb", required=True)
    run = verbs.add_parser("run")
    run.add_argument("count", type=int)
    run.add_argument("--first", type=int, default=0)
    run.add_argument("--real", action="store_true")
    run.add_argument("--way", action="append")
    odd = verbs.add_parser("odd")
    odd.add_argument("count", type=int)
    odd.add_argument("--first", type=int, default=0)
    odd.add_argument("--way", action="append", choices=numbered_oracle.WAYS)
    odd.add_argument("--keep", type=Path)
    odd.add_argument("--headers", dest="make", action="store_const", const=Workshop.hurt, default=Workshop.make)
    odd.add_argument("--packets", dest="make", action="store_const", const=Workshop.lost)
    make = verbs.add_parser("make")
    make.add_argument("clip")
    make.add_argument("seed", type=int)
    make.add_argument("file", type=Path)
    given = parser.parse_args()
    cli = Ffmpeg(imageio_ffmpeg.get_ffmpeg_exe())
    with tempfile.TemporaryDirectory() as folder:
        if given.verb == "odd":
            seeds = range(given.first, given.first + given.count)
            place = given.keep or Path(folder) / "odd"
            print(
                campaign(
                    seeds,
                    cli,
                    place,
                    ways=given.way or tuple(numbered_oracle.WAYS),
                    make=given.make,
                    show=lambda line: print(line, flush=True),
                )
            )
            return
        media = Media(Path(folder), cli)
        if given.verb == "make":
            clips = synthesised(media) | real()
            made = mutant(given.clip, clips[given.clip], given.seed)
            given.file.write_bytes(made.data)
            print(made.done)
            return
        clips = real() if given.real else synthesised(media)
        seeds = range(given.first, given.first + given.count)
        options = ("--short-side", 64) if given.real else ()
        done = fuzz(clips, seeds, cli, Path(folder) / "runs", ways=given.way, options=options, show=print)
    print(done, Counter(finding.kind for finding in done.found))


if __name__ == "__main__":
    main()
