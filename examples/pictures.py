"""Draw the pictures of the documents: `python examples/pictures.py` writes them to docs/.

The report is of clips that ffmpeg generates, one of them cut off, as Chromium shows it (`pip install selenium`).
"""

import contextlib
import shutil
import sys
import tempfile
from pathlib import Path
from xml.sax.saxutils import escape

import ffmpeg
import imageio_ffmpeg
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

from vidprep.transcode import report, transcode

DOCS = Path(__file__).resolve().parents[1] / "docs"
PATTERNS = {
    "mandelbrot": "mandelbrot=size=640x360:rate=30",
    "testsrc2": "testsrc2=size=1280x720:rate=30",
    "gradients": "gradients=size=854x480:rate=25:nb_colors=6:speed=0.02",
    "seahorses": "mandelbrot=size=640x480:rate=25:start_x=-0.7435:start_y=0.1314:start_scale=0.02",
}
BT709 = {"vf": "scale=out_color_matrix=bt709", "colorspace": "bt709", "color_primaries": "bt709", "color_trc": "bt709"}
ROWS = [
    ["demux", "decode", "order, timestamps", "cut, --fps", "upright, size, colours", "encode", "mux"],
    ["journal, manifest", "gets its name", "read back by number", "PSNR, SSIM", "decode each packet"],
]
WIDTH, HEIGHT, GAP = 132, 40, 18


def draw_pipeline(path: Path) -> None:
    """Draw what happens to a video: made from left to right, verified from right to left."""
    right = len(ROWS[0]) * (WIDTH + GAP)
    shapes = []

    def box(x: int, y: int, text: str, colour: str) -> None:
        shapes.append(f'<rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="6" fill="{colour}"/>')
        shapes.append(
            f'<text x="{x + WIDTH // 2}" y="{y + HEIGHT // 2 + 4}" text-anchor="middle">{escape(text)}</text>'
        )

    def arrow(*points: tuple[int, int]) -> None:
        line = " ".join(f"{x},{y}" for x, y in points)
        shapes.append(f'<polyline points="{line}" fill="none" stroke="#667" marker-end="url(#tip)"/>')

    for column, text in enumerate(ROWS[0]):
        x = column * (WIDTH + GAP)
        box(x, 10, text, "#d7e6f7")
        if column:
            arrow((x - GAP, 30), (x - 6, 30))
    for column, text in enumerate(ROWS[1]):
        x = (column + 1) * (WIDTH + GAP)
        box(x, 100, text, "#dcf1dc")
        if column:
            arrow((x, 120), (x - GAP + 6, 120))
    encode, picture = (right - 2 * (WIDTH + GAP) + WIDTH // 2, right - 3 * (WIDTH + GAP) + WIDTH // 2)
    arrow((encode, 50), (encode, 94))
    arrow((picture, 50), (picture, 94))
    shapes.append(f'<text x="{picture - 8}" y="78" text-anchor="end" fill="#667">the frames that went in</text>')
    path.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-8 0 {right} 150" font-family="sans-serif" font-size="11">'
        '<defs><marker id="tip" markerWidth="7" markerHeight="7" refX="2" refY="3" orient="auto">'
        '<path d="M0,0 L6,3 L0,6 z" fill="#667"/></marker></defs>'
        f'<rect x="-8" width="{right}" height="150" fill="white"/>{"".join(shapes)}</svg>\n'
    )


def show_report(folder: Path) -> None:
    """Make clips, a dataset and its report in the working folder, and photograph the page and a worst frame."""
    Path("raw").mkdir()
    for name, pattern in PATTERNS.items():
        clip = ffmpeg.input(pattern, format="lavfi", t=4).output(f"raw/{name}.mp4", crf=12, pix_fmt="yuv420p", **BT709)
        clip.run(cmd=imageio_ffmpeg.get_ffmpeg_exe(), quiet=True)
    clip = Path("raw/testsrc2.mp4").read_bytes()
    Path("raw/cut_off.mp4").write_bytes(clip[: len(clip) // 2])
    transcode("raw", "ready", short_side=240, gop=5, crf=26)
    page = report("ready", out=".").html
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for argument in ("--headless=new", "--no-sandbox", "--hide-scrollbars", "--window-size=1200,1870"):
        options.add_argument(argument)
    with webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver"))) as browser:
        browser.get(page.resolve().as_uri())
        WebDriverWait(browser, 20).until(lambda shown: shown.find_elements(By.CSS_SELECTOR, ".plotly svg"))
        browser.save_screenshot(folder / "report.png")
        browser.set_window_size(1200, 3000)  # or the element is cut off at the edge of the window
        browser.find_element(By.CSS_SELECTOR, "article.strip").screenshot(str(folder / "worst_frames.png"))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.exit(print(__doc__))
    draw_pipeline(DOCS / "pipeline.svg")
    with tempfile.TemporaryDirectory() as work, contextlib.chdir(work):
        show_report(DOCS)
