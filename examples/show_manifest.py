"""Print what a destination holds, a line per video, from its manifest alone: `python show_manifest.py DST`."""

import sys
from pathlib import Path

import pyarrow.parquet as pq


def show(destination: Path) -> None:
    rows = pq.read_table(destination / "manifest.parquet", page_checksum_verification=True).to_pylist()
    print(
        f"{'id':32}{'size':>10}{'frames':>8}{'keyframes':>10}{'kB':>8}{'of source':>10}{'PSNR-Y':>8}{'worst':>7}{'SSIM':>8}"
    )
    for row in rows:
        if row["status"] != "ok":
            print(f"{row['id'][-31:]:32}failed: {row['message']}")
            continue
        print(
            f"{row['id'][-31:]:32}{row['width']:>5}x{row['height']:<4}{row['num_frames']:>8}{len(row['keyframes'] or ()) or '-':>10}"
            f"{row['size_bytes'] / 1e3:>8.0f}{row['size_bytes'] / row['source_size_bytes']:>10.0%}"
            f"{row['psnr_y_db']:>8.2f}{row['psnr_y_min_db']:>7.1f}{row['ssim']:>8.4f}"
        )
    print(f"manifest: {destination / 'manifest.parquet'}")


if __name__ == "__main__":
    show(Path(sys.argv[1]))
