"""The frames of a video that vision-language models get, and their size.

The rule is that of Qwen's `qwen_vl_utils` (smart_nframes and its video readers), so that a model sees the frames that its own processor
would have chosen. A video of `num_frames` frames and `seconds` gives

    count = seconds * fps, at least min_frames rounded up to an even number, at most max_frames rounded down to one and at most num_frames,
            then rounded down to an even number
    frames = round(linspace(0, num_frames - 1, count)), where halves are rounded to the even number

so the first and the last frame are always among them, and the effective rate is count / seconds. A video of one frame, which
`qwen_vl_utils` rejects, gives that frame.

Other libraries take other frames: each rule of RULES is one of theirs.

Sizes are those of its `smart_resize`: both sides a multiple of a number, and the area within bounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Numbers = npt.NDArray[np.int64]
    Places = npt.NDArray[Any]  # numbers of frames before they are rounded down

FRAMES_AT_ONCE = 2  # of one temporal patch of Qwen's vision models


def count_samples(num_frames: int, seconds: float, fps: float, *, min_frames: int, max_frames: int) -> int:
    """Return how many frames of a video are sampled.

    Args:
        num_frames: Frames of the video, at least 1.
        seconds: Its duration.
        fps: Frames per second to sample.
        min_frames: Least number of frames, as far as the video has them.
        max_frames: Largest number of frames.
    """
    wanted = min(max(seconds * fps, round_up(min_frames)), round_down(max_frames), num_frames)
    return max(1, round_down(wanted))


def round_up(count: float) -> int:
    """Return the next number of frames that can be taken at once."""
    return math.ceil(count / FRAMES_AT_ONCE) * FRAMES_AT_ONCE


def round_down(count: float) -> int:
    """Return the last number of frames that can be taken at once."""
    return math.floor(count / FRAMES_AT_ONCE) * FRAMES_AT_ONCE


def spread(num_frames: int, count: int) -> Numbers:
    """Return (count,) frame numbers from the first to the last frame of a video at equal distances; [0] for a count of 1.

    These are torch.linspace(0, num_frames - 1, count).round(), which rounds to 32 bits, and counts from the nearer end.
    """
    import numpy as np  # settings are read without it

    if count == 1:
        return np.zeros(1, np.int64)
    last = np.float32(num_frames - 1)
    step = float(last / np.float32(count - 1))
    steps = np.arange(count)
    exact = np.where(steps < count // 2, step * steps, last - step * steps[::-1])
    return np.round(exact.astype(np.float32)).astype(np.int64)


def _qwen(num_frames: int, seconds: float, fps: float, least: int, most: int) -> Places:
    return spread(num_frames, count_samples(num_frames, seconds, fps, min_frames=least, max_frames=most))


def _linspace(begin: int, end: int, count: int) -> Places:
    import numpy as np

    return np.linspace(begin, end, max(1, count))


def _qwen3(num_frames: int, seconds: float, fps: float, least: int, most: int) -> Places:
    """`Qwen3VLVideoProcessor.sample_frames` of transformers 5: any number of frames, odd ones too."""
    count = min(max(int(num_frames / (num_frames / seconds) * fps), least), most, num_frames)
    return _linspace(0, num_frames - 1, count).round()


def _smolvlm(num_frames: int, seconds: float, fps: float, least: int, most: int) -> Places:  # noqa: ARG001
    """`SmolVLMVideoProcessor.sample_frames` of transformers 5: without the first and last second of a long video."""
    import numpy as np

    begin, end, rate = 0, num_frames - 1, num_frames / seconds
    if seconds - 2 > most * fps:
        begin, end = int(rate), min(int(num_frames - rate), num_frames - 1)
    if begin >= end:
        begin, end = 0, num_frames - 1
    return np.unique(_linspace(begin, end, min(round(fps * seconds), most)).astype(np.int64))


def _internvl(num_frames: int, seconds: float, fps: float, least: int, most: int) -> Places:
    """`InternVLVideoProcessor.sample_frames` of transformers 5: the middles of parts of equal length."""
    import numpy as np

    count = max(1, min(max(int(num_frames / (num_frames / seconds) * fps), least), most, num_frames))
    step = num_frames / count
    return (step / 2 + step * np.arange(count)).astype(np.float32)


def _llava(num_frames: int, seconds: float, fps: float, least: int, most: int) -> Places:  # noqa: ARG001
    """LLaVA-Video (`process_video_with_decord` of LLaVA-NeXT): every round(rate / fps)-th frame; if these are too many, some of all."""
    import numpy as np

    numbers = np.arange(0, num_frames, max(1, round(num_frames / seconds / fps)))
    return numbers if len(numbers) <= most else _linspace(0, num_frames - 1, most)


def _llamafactory(num_frames: int, seconds: float, fps: float, least: int, most: int) -> Places:  # noqa: ARG001
    """LLaMA-Factory (`_get_video_sample_indices` of its mm_plugin): some of all, rounded down."""
    return _linspace(0, num_frames - 1, min(num_frames, most, max(1, math.floor(seconds * fps))))


RULES: dict[str, Callable[[int, float, float, int, int], Places]] = {
    "qwen": _qwen,
    "qwen3": _qwen3,
    "smolvlm": _smolvlm,
    "internvl": _internvl,
    "llava": _llava,
    "llamafactory": _llamafactory,
}


def sample_frames(
    rule: str, num_frames: int, seconds: float, fps: float, *, min_frames: int, max_frames: int
) -> Numbers:
    """Return the numbers of the frames that a library samples, ascending.

    Args:
        rule: One of RULES.
        num_frames: Frames of the video, at least 1.
        seconds: Its duration.
        fps: Frames per second to sample.
        min_frames: Least number of frames, for the rules that have one, as far as the video has them.
        max_frames: Largest number of frames.
    """
    import numpy as np

    if seconds <= 0:
        return np.zeros(1, np.int64)
    return RULES[rule](num_frames, seconds, fps, min_frames, max_frames).astype(np.int64)


def most_frames(rule: str, max_frames: int) -> int:
    """Return the largest number of frames that a rule gives."""
    return round_down(max_frames) if rule == "qwen" else max_frames


def are_possible(rule: str, min_frames: int, max_frames: int) -> bool:
    """Return whether there is a number of frames from `min_frames` to `max_frames` that a rule gives."""
    return most_frames(rule, max_frames) >= (round_up(min_frames) if rule == "qwen" else min_frames)


def aspect_buckets(multiple: int, area: int) -> list[tuple[int, int]]:
    """Return the (width, height) of all buckets, ascending: sides that are multiples, of which the shorter one is at least about half the
    side of a square of that area, and whose product is at most the area. They are those of musubi-tuner's BucketSelector.

    Args:
        multiple: What sides are multiples of.
        area: Largest area, in pixels.
    """
    side = math.isqrt(area)
    found = set[tuple[int, int]]()
    for width in range(max(side // 2 // multiple, 1) * multiple, side + multiple, multiple):
        if height := area // width // multiple * multiple:
            found |= {(width, height), (height, width)}
    return sorted(found)


def nearest_bucket(width: float, height: float, multiple: int, area: int) -> tuple[int, int]:
    """Return the bucket whose aspect ratio differs least from that of a picture, by the quotient of both."""
    aspect = math.log(width / height)
    return min(aspect_buckets(multiple, area), key=lambda sides: (abs(math.log(sides[0] / sides[1]) - aspect), sides))


LONGEST = 200  # the longer side over the shorter one, from where on `smart_resize` refuses


def smart_resize(width: int, height: int, multiple: int, *, min_area: int, max_area: int) -> tuple[int, int]:
    """Return the (width, height) to which qwen_vl_utils.smart_resize scales a picture.

    Each side is rounded to the nearest multiple, halves to the even one. If the area is out of bounds, both sides are scaled by the square
    root of bound / area, and rounded inwards.

    Raises:
        ValueError: The picture is more than LONGEST times as long as it is wide.
    """
    if max(width, height) > LONGEST * min(width, height):
        raise ValueError(f"{width}x{height} is more than {LONGEST} times as long as it is wide")
    sides = [max(multiple, round(side / multiple) * multiple) for side in (width, height)]
    area = sides[0] * sides[1]
    if area > max_area:
        shrink = math.sqrt(width * height / max_area)
        sides = [max(multiple, math.floor(side / shrink / multiple) * multiple) for side in (width, height)]
    elif area < min_area:
        grow = math.sqrt(min_area / (width * height))
        sides = [math.ceil(side * grow / multiple) * multiple for side in (width, height)]
    return sides[0], sides[1]
