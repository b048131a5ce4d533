"""Layouts, random parts, flips by chance, 16 bits, and the user's own function of the frames."""

from __future__ import annotations

import re
import subprocess
import sys
from fractions import Fraction

import av
import numpy as np
import pytest
from PIL import Image

from tests.helpers import make_clips, transcode, with_peers
from vidprep.formats import PrefetchLoader, VideoDataset, open_store
from vidprep.formats.errors import SettingsError, TransformError
from vidprep.formats.training._transform import IMAGENET, Transform
from vidprep.formats.training.items import stream
from vidprep.formats.video import rgb
from vidprep.formats.video.rgb16 import deep_rgb


@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32"])
@pytest.mark.parametrize(("layout", "axes"), [("THWC", (0, 1, 2, 3)), ("TCHW", (0, 3, 1, 2)), ("CTHW", (3, 0, 1, 2))])
def test_layouts_are_those_of_their_letters(layout, axes, dtype, store_of):
    options = {"crop": (40, 32), "dtype": dtype, "normalize": "imagenet" if dtype != "uint8" else False}
    plain = VideoDataset(store_of("tensor"), 3, 2, **options)
    dataset = VideoDataset(store_of("tensor"), 3, 2, layout=layout, **options)
    made = dataset[5]["frames"]
    assert (
        made.flags.c_contiguous and made.shape == dataset.frames_shape and made.dtype == dataset.frames_dtype == dtype
    )
    assert np.array_equal(made, plain[5]["frames"].transpose(axes))
    with PrefetchLoader(dataset, 4, processes=False) as loader:
        batch = next(iter(loader))["frames"]
    assert batch.shape == (4, *made.shape) and np.array_equal(batch[2], dataset[2]["frames"])


def test_imagenet_equals_torchvisions_normalisation(store_of):
    plain = VideoDataset(store_of("tensor"), 2)[7]["frames"].astype(np.float64)
    made = VideoDataset(store_of("tensor"), 2, dtype="float32", normalize="imagenet")[7]["frames"]
    assert np.abs(made - (plain / 255 - IMAGENET[0]) / IMAGENET[1]).max() < 1e-5


@pytest.mark.long
def test_flips_come_with_their_probability(store_of):
    whole = VideoDataset(store_of("tensor"), 1)
    for given, due in ((0.25, 0.25), (0.5, 0.5), (True, 0.5), (1.0, 1.0), (1, 1.0), (0, 0.0), (False, 0.0)):
        dataset = VideoDataset(store_of("tensor"), 1, flip=given)
        flipped = 0
        for epoch in range(8):
            dataset.set_epoch(epoch)
            for n in range(len(dataset)):
                frames, plain = dataset[n]["frames"], whole[n]["frames"]
                is_flipped = np.array_equal(frames, plain[:, :, ::-1])
                assert is_flipped or np.array_equal(frames, plain)
                flipped += is_flipped
        assert flipped / (8 * len(whole)) == pytest.approx(due, abs=0.1), given


def test_random_parts_are_drawn_as_torchvision_draws_them():
    """Areas and shapes within what was asked, uniform; the part of the picture, scaled."""
    given = Transform(size=32, random_resized_crop=((0.2, 0.6), (0.5, 2.0)))
    parts = [given._random_part(240, 320, np.random.default_rng(seed)) for seed in range(3000)]
    areas = np.array([height * width for _, _, height, width in parts]) / (240 * 320)
    shapes = np.array([width / height for _, _, height, width in parts])
    assert 0.19 < areas.min() < 0.21 and 0.58 < areas.max() < 0.61 and abs(areas.mean() - 0.4) < 0.02
    assert 0.49 < shapes.min() < 0.52 and 1.9 < shapes.max() < 2.05 and abs(np.log(shapes).mean()) < 0.08
    assert all(0 <= top <= 240 - height and 0 <= left <= 320 - width for top, left, height, width in parts)
    # Where nothing fits, the middle, as near to the shape as the frame lets it be.
    assert Transform(size=8, random_resized_crop=((0.99, 1.0), (1.0, 1.0)))._random_part(
        40, 400, np.random.default_rng(0)
    ) == (0, 180, 40, 40)


def test_a_random_part_is_scaled_to_the_size(store_of):
    whole = VideoDataset(store_of("tensor"), 2)
    dataset = VideoDataset(store_of("tensor"), 2, size=(24, 40), random_resized_crop=True)
    dataset.set_epoch(0)
    assert dataset.frame_size == (24, 40)
    for n in range(6):
        top, left, height, width = dataset.picture._random_part(64, 96, stream((0, 0, n), "picture"))
        for frame, full in zip(dataset[n]["frames"], whole[n]["frames"], strict=True):
            due = Image.fromarray(full[top : top + height, left : left + width]).resize(
                (40, 24), Image.Resampling.BICUBIC
            )
            assert np.mean((frame.astype(float) - np.asarray(due)) ** 2) < 30, "35 dB"
    with PrefetchLoader(dataset, 3, processes=False) as loader:
        assert np.array_equal(next(iter(loader))["frames"][1], dataset[1]["frames"])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"flip": 1.5}, "flip is 1.5; give a probability, 0 to 1, or True for 0.5"),
        ({"flip": "x"}, "flip is 'x'"),
        ({"layout": "HWC"}, "layout is 'HWC'; give THWC, TCHW or CTHW"),
        ({"num_crops": 2}, "num_crops is 2; give 1 or 3"),
        ({"num_crops": 3}, "num_crops needs crop"),
        ({"num_crops": 3, "crop": 8, "random_crop": True}, "and no random_crop"),
        ({"random_resized_crop": True}, "random_resized_crop needs size"),
        (
            {"random_resized_crop": (0.5, 1), "size": 8},
            "give True, or (scale, ratio), each (from, to), scale at most 1",
        ),
        ({"size": True}, "size is True; give pixels above 0"),
        ({"size": [64, 0]}, "size is [64, 0]"),
        (
            {"normalize": ((127,) * 3, (50,) * 3), "dtype": "float32"},
            "mean and std are of values of 0 to 1: divide them by 255",
        ),
        ({"where": "num_frames > 20"}, "where is 'num_frames > 20'; give an Arrow expression"),
        ({"where": lambda row: row["labels"]["none"]}, "where: KeyError for 'sub/c00': 'none'"),
        ({"world_size": 100_000}, "world_size is 100000: give fewer ranks"),
        ({"random_resized_crop": ((1, 2), (1,)), "size": 8}, "random_resized_crop is ((1, 2), (1,))"),
        ({"random_resized_crop": ((1, 0.5), (1, 1)), "size": 8}, "random_resized_crop is ((1, 0.5), (1, 1))"),
        (
            {"normalize": "kinetics", "dtype": "float32"},
            "normalize is 'kinetics'; give True, 'imagenet' or (mean, std)",
        ),
        ({"dtype": "uint16"}, "dtype is 'uint16'; a store of burst has 8 bits"),
        (
            {"crop": (200, 20)},
            "'sub/c00': a crop of 200 lines of 20 pixels does not fit into 64 lines of 96; scale with size",
        ),
    ],
)
def test_pictures_that_cannot_be_made_are_refused(options, said, store_of):
    with pytest.raises(SettingsError, match=re.escape(said)):
        VideoDataset(store_of("burst"), **options)


# ------------------------------------------------------------------------------------------------ the user's own function


def gives_two(frames):
    return frames, frames


def halved(frames):
    return frames[:, ::2, ::2].astype(np.float32) / 2


def loses_one(frames):
    return frames[:-1] if frames.any() else frames


def fails(frames):
    if frames.any():
        raise RuntimeError("the user's own words")
    return frames


@pytest.mark.parametrize("processes", [True, False])
def test_a_function_of_the_frames_is_part_of_the_dataset(processes, store_of):
    dataset = VideoDataset(store_of("tensor"), 3, crop=(40, 32), transform=halved)
    assert dataset.frames_shape == (3, 20, 16, 3) and dataset.frames_dtype == np.float32
    assert np.array_equal(dataset[4]["frames"], halved(VideoDataset(store_of("tensor"), 3, crop=(40, 32))[4]["frames"]))
    with PrefetchLoader(dataset, 4, processes=processes) as loader:
        batch = next(iter(loader))["frames"]
    assert batch.dtype == np.float32 and np.array_equal(batch[2], dataset[2]["frames"])


@pytest.mark.parametrize("processes", [True, False])
def test_a_function_that_fails_names_the_video(processes, store_of):
    dataset = VideoDataset(store_of("tensor"), 3, step=3, transform=fails)
    said = r"tensor: 'sub/c00', frames 3 to 5: RuntimeError at .*test_transforms.py:\d+: the user's own words"
    with pytest.raises(TransformError, match=said):
        dataset[1]
    with (
        PrefetchLoader(dataset, 2, processes=processes) as loader,
        pytest.raises(TransformError, match="the user's own words"),
    ):
        next(iter(loader))
    with pytest.raises(
        TransformError, match=r"frames 0 to 2: TypeError .*it returns tuple; return an array or a tensor"
    ):
        VideoDataset(store_of("tensor"), 3, step=3, transform=gives_two)[0]
    other = VideoDataset(store_of("tensor"), 3, step=3, transform=loses_one)
    with (
        PrefetchLoader(other, 2, processes=processes) as loader,
        pytest.raises(
            TransformError,
            match=re.escape("'sub/c00', frames 0 to 2: gives (2, 64, 96, 3) uint8, and (3, 64, 96, 3) uint8"),
        ),
    ):
        next(iter(loader))


OF_A_PROGRAM = """
import sys
import numpy as np
from vidprep.formats import PrefetchLoader, VideoDataset

def darker(frames):
    return frames // 2

def main():
    plain, dataset = (VideoDataset(sys.argv[1], 3, step=4, transform=how) for how in (None, darker))
    with PrefetchLoader(dataset, 4, workers=1) as loader:
        assert np.array_equal(next(iter(loader))["frames"][2], plain[2]["frames"] // 2)
    print("all well")

GUARD
    main()
"""


@pytest.mark.long
def test_a_function_of_the_program_itself_reaches_the_workers(store_of, tmp_path):
    script, said = tmp_path / "program.py", {}
    for guard in ('if __name__ == "__main__":', "if True:"):
        script.write_text(OF_A_PROGRAM.replace("GUARD", guard))
        done = subprocess.run([sys.executable, script, store_of("tensor")], capture_output=True, text=True, timeout=300)
        said[guard] = done.returncode, done.stdout, done.stderr
    guarded, bare = said.values()
    assert guarded == (0, "all well\n", "")
    assert bare[0] == 1 and 'put what the program does behind `if __name__ == "__main__":`' in bare[2]


def test_a_function_that_no_process_can_have_is_refused(store_of):
    dataset = VideoDataset(store_of("tensor"), 3, transform=lambda frames: frames)
    with pytest.raises(
        SettingsError, match=r"cannot be sent to processes .*a function defined in a module, or processes=False"
    ):
        PrefetchLoader(dataset, 4)
    with PrefetchLoader(dataset, 4, processes=False) as loader:
        assert len(next(iter(loader))["frames"]) == 4


OF_TORCHVISION = """
import sys, torch
from torch.utils.data import DataLoader
from torchvision.transforms import v2
from vidprep.formats import PrefetchLoader, VideoDataset

if __name__ == "__main__":
    steps = v2.Compose([v2.RandomResizedCrop(24, antialias=True), v2.ColorJitter(0.4), v2.ToDtype(torch.float32, scale=True),
                        v2.Normalize((0.45,) * 3, (0.225,) * 3)])
    dataset = VideoDataset(sys.argv[1], 3, step=4, layout="TCHW", transform=steps, tensors=True)
    assert dataset.frames_shape == (3, 3, 24, 24) and dataset.frames_dtype == "float32"
    before = torch.get_rng_state()
    assert not torch.equal(dataset[1]["frames"], dataset[1]["frames"]), "another part each time"
    assert torch.equal(torch.get_rng_state(), before), "torch's own numbers go on as they were"
    epochs = {}
    for processes in (True, False):
        with PrefetchLoader(dataset, 4, num_workers=1, processes=processes) as loader:
            epochs[processes] = [torch.cat([batch["frames"] for batch in loader]) for _ in range(2)]
    assert all(torch.equal(a, b) for a, b in zip(*epochs.values())) and not torch.equal(*epochs[True])
    dataset.set_epoch(0)
    batches = [batch for batch in DataLoader(dataset, 4, num_workers=2)]
    assert torch.equal(torch.cat([batch["frames"] for batch in batches]), epochs[True][0])
    assert isinstance(batches[0]["class_id"], torch.Tensor) and batches[0]["class_id"].dtype == torch.int64
    print("all well")
"""


@pytest.mark.long
def test_torchvision_s_transforms_are_the_same_wherever_they_are_made(store_of, tmp_path):
    script = tmp_path / "of_torchvision.py"
    script.write_text(OF_TORCHVISION)
    assert "all well" in with_peers(script, store_of("tensor"), needs=["torch", "torchvision"])


# ------------------------------------------------------------------------------------------------ ten bits


@pytest.fixture(scope="module")
def ten_bits(cli, tmp_path_factory):
    """A ramp that has four times as many levels as 8 bits hold."""
    root = tmp_path_factory.mktemp("ten_bits")
    (root / "src").mkdir()
    ramp = "nullsrc=size=512x64:rate=10:d=1,format=yuv444p10le,geq=lum='64+876*X/511':cb=512+200*Y/63:cr=512-150*Y/63"
    tags = ("-color_range", "tv", "-colorspace", "bt709", "-color_primaries", "bt709", "-color_trc", "bt709")
    cli.run("-f", "lavfi", "-i", ramp, "-c:v", "libx264", "-qp", 0, *tags, root / "src" / "ramp.mp4")
    how = ("--codec", "hevc", "--pixel-format", "yuv444p10le", "--crf", 1, "--gop", 5)
    assert transcode(root / "src", root / "dst", *how).code == 0
    return root / "dst"


def exact_rgb(path, cli) -> np.ndarray:
    """ITU-R BT.709, limited range, of the 10-bit planes that ffmpeg decodes; (T, H, W, 3), 0 to 1."""
    planes = np.frombuffer(cli.run("-i", path, "-f", "rawvideo", "-pix_fmt", "yuv444p10le", "-"), "<u2").reshape(
        -1, 3, 64, 512
    )
    luma, blue, red = (
        (planes[:, n].astype(np.float64) - low) / span for n, low, span in ((0, 64, 876), (1, 512, 896), (2, 512, 896))
    )
    weights = 0.2126, 0.7152, 0.0722
    r, b = luma + 2 * (1 - weights[0]) * red, luma + 2 * (1 - weights[2]) * blue
    g = (luma - weights[0] * r - weights[2] * b) / weights[1]
    return np.clip(np.stack([r, g, b], -1), 0, 1)


def test_ten_bits_are_read_as_sixteen(ten_bits, cli):
    store = open_store(ten_bits)
    deep, plain = store["ramp"].frames(dtype="uint16"), store["ramp"].frames()
    due = exact_rgb(store.file("ramp"), cli)
    assert deep.dtype == np.uint16 and deep.shape == plain.shape
    assert np.abs(deep / 65535 - due).max() < 0.1 / 1023, "within a tenth of a level of 10 bits"
    assert np.abs(plain / 255 - due).max() < 1 / 255
    assert len(np.unique(deep[0, 0, :, 1])) > 1.5 * len(np.unique(plain[0, 0, :, 1])), "more levels than 8 bits have"
    small = store["ramp"].frames([0], size=(32, 256), dtype="uint16")
    assert np.abs(small[0] / 65535 - due[0].reshape(32, 2, 256, 2, 3).mean((1, 3))).mean() < 0.004
    dataset = VideoDataset(ten_bits, 2, crop=(40, 100), dtype="uint16", layout="CTHW")
    assert np.array_equal(dataset[3]["frames"].transpose(1, 2, 3, 0), deep[3:5, 12:52, 206:306])
    with PrefetchLoader(dataset, 3, shuffle=True, processes=False) as loader:
        batch = next(iter(loader))
        for frames, numbers in zip(batch["frames"], batch["indexes"], strict=True):
            assert np.array_equal(frames, dataset[int(numbers[0])]["frames"])


def planes_of(name: str, values, matrix: int, range_: int):
    frame = av.VideoFrame(64, 48, name)
    frame.colorspace, frame.color_range = matrix, range_
    for plane, samples in zip(frame.planes, values, strict=True):
        lines = np.zeros((plane.height, abs(plane.line_size)), np.uint8)
        lines[:, : samples.shape[1] * samples.itemsize] = np.ascontiguousarray(samples).view(np.uint8)
        plane.update(lines.tobytes())
    return frame


@pytest.mark.parametrize(
    ("name", "depth"), [("yuv444p", 8), ("yuv444p10le", 10), ("yuv444p12le", 12), ("yuv420p", 8), ("yuv420p10le", 10)]
)
@pytest.mark.parametrize("range_", [1, 2], ids=["limited", "full"])
@pytest.mark.parametrize("matrix", [1, 5, 9])
def test_any_sample_becomes_the_colour_that_the_standards_say(name, depth, range_, matrix):
    """Also of luma beyond black and white, in chroma that is one colour where it is subsampled."""
    rng, top, flat = np.random.default_rng(depth), (1 << depth) - 1, "420" in name
    dtype = np.uint8 if depth == 8 else np.dtype("<u2")
    values = [
        np.full(shape, rng.integers(top + 1), dtype)
        if flat and number
        else rng.integers(0, top + 1, shape).astype(dtype)
        for number, shape in enumerate([(48, 64), *[(24, 32) if flat else (48, 64)] * 2])
    ]
    y, cb, cr = (np.kron(each.astype(float), np.ones((48 // len(each),) * 2)) for each in values)
    unit, middle = 1 << depth - 8, 1 << depth - 1
    low, luma, chroma = (16 * unit, 219 * unit, 224 * unit) if range_ == 1 else (0, top, top)
    red, blue = {1: (0.2126, 0.0722), 5: (0.299, 0.114), 9: (0.2627, 0.0593)}[matrix]
    y, cb, cr = (y - low) / luma, (cb - middle) / chroma, (cr - middle) / chroma
    r, b = y + 2 * (1 - red) * cr, y + 2 * (1 - blue) * cb
    due = np.clip(np.stack([r, (y - red * r - blue * b) / (1 - red - blue), b], -1), 0, 1)
    assert np.abs(deep_rgb(planes_of(name, values, matrix, range_), None) / 65535 - due).max() < 1e-5


@pytest.mark.parametrize("name", ["rgb24", "bgra", "gbrp", "gbrp10le", "gbrp16le"])
def test_white_is_white_and_black_is_black(name):
    depth = max(component.bits for component in av.VideoFormat(name).components)
    for value, due in ((0, 0), ((1 << depth) - 1, 65535)):
        frame = av.VideoFrame(64, 48, name)
        for plane in frame.planes:
            plane.update(
                np.full(
                    plane.buffer_size * 8 // (8 if depth == 8 else 16), value, np.uint8 if depth == 8 else "<u2"
                ).tobytes()
            )
        for size in (None, (24, 32)):
            assert np.unique(deep_rgb(frame, size)).tolist() == [due], (name, size)


def test_one_bit_is_black_and_white():
    frame = av.VideoFrame(64, 48, "monow")
    for plane in frame.planes:
        plane.update(b"\x0f" * plane.buffer_size)
    assert np.unique(deep_rgb(frame, None)).tolist() == [0, 65535]


def test_random_parts_do_not_fill_the_memory(store_of):
    dataset = VideoDataset(store_of("tensor"), 1, size=16, random_resized_crop=True)
    for _ in range(3):
        for n in range(len(dataset)):
            dataset[n]
    assert len(rgb._mine.filters) <= 16


def test_a_store_of_eight_bits_has_no_uint16(store_of):
    store = open_store(store_of("burst"))
    with pytest.raises(SettingsError, match="transform is 3; give a function of frames"):
        VideoDataset(store, transform=3)
    for dtype in ("uint16", "float32"):
        with pytest.raises(ValueError, match=f"dtype is '{dtype}'; a store of burst has uint8"):
            store[store.ids[0]].frames([0], dtype=dtype)


# ------------------------------------------------------------------------------------------------ what they say of themselves


def test_reprs_of_stores_videos_datasets_and_loaders(store_of, tmp_path):
    store = open_store(store_of("burst"))
    assert repr(store) == f"<burst store {store.path}: {len(store)} videos>"
    video = store[store.ids[0]]
    rate = f"{float(video.frame_rate or Fraction(0)):.5g}"
    assert (
        repr(video)
        == f"<video {store.ids[0]!r}: {len(video)} frames of {video.width}x{video.height} at {rate} a second>"
    )
    dataset = VideoDataset(store, 4)
    assert (
        repr(dataset) == f"<VideoDataset {store.path}: {len(dataset)} sequences of 4 frames from {len(store)} videos>"
    )
    with PrefetchLoader(dataset, 3, processes=False) as loader:
        assert repr(loader) == f"<PrefetchLoader: {len(loader)} batches of 3 by 2 workers from {dataset!r}>"


def test_wrong_usage_names_the_right_usage(store_of):
    store = open_store(store_of("burst"))
    with pytest.raises(TypeError, match=re.escape("store[0]: videos are looked up by id; use store[store.ids[0]]")):
        store[0]
    with pytest.raises(TypeError, match=re.escape("frames(3): give a list of frame numbers, as in frames([3])")):
        store[store.ids[0]].frames(3)
    assert store[store.ids[0]].frames(np.arange(3)).shape[0] == 3


def test_times_are_the_nearest_doubles(tmp_path):
    make_clips(tmp_path / "src", 1, 40)
    assert transcode(tmp_path / "src", tmp_path / "dst", "--fps", "30000/1001").code == 0
    store = open_store(tmp_path / "dst")
    video = store[store.ids[0]]
    assert video.timestamps.tolist() == [float(n / Fraction(30000, 1001)) for n in range(len(video))]
