"""Frames for vision-language models by the rules of other libraries, the times that a model is told, and dialogues: by those libraries."""

from __future__ import annotations

import json
from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import manifest, transcode
from tests.numbered_pictures import constant, numbers_in, write
from tests.transcode.export.test_sampled import lines, qwen
from vidprep.formats import VideoDataset, VideoFiles, sample_fps
from vidprep.formats.errors import SettingsError
from vidprep.formats.spread import RULES, sample_frames
from vidprep.transcode import burst, pack

CASES = [
    (frames, float(Fraction(frames) / rate))
    for rate in (Fraction(24), Fraction(25), Fraction(30000, 1001), Fraction(30), Fraction(60), Fraction(10))
    for frames in (5, 25, 90, 199, 300, 315, 321, 989, 4000, 7200, 216000)
]
BY_LIBRARIES = """
import importlib.util, json, os, sys, types
from types import SimpleNamespace
import llamafactory
# Its package imports what it trains with.
part = types.ModuleType("llamafactory.data")
part.__path__ = [os.path.join(os.path.dirname(llamafactory.__file__), "data")]
torchaudio = types.ModuleType("torchaudio")
torchaudio.__spec__ = importlib.util.spec_from_loader("torchaudio", None)
sys.modules |= {"llamafactory.data": part, "torchaudio": torchaudio}
from llamafactory.data.mm_plugin import BasePlugin
from transformers.models.internvl.video_processing_internvl import InternVLVideoProcessor
from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor
from transformers.models.smolvlm.video_processing_smolvlm import SmolVLMVideoProcessor
from transformers.video_utils import VideoMetadata

qwen3, smolvlm, internvl = Qwen3VLVideoProcessor(), SmolVLMVideoProcessor(), InternVLVideoProcessor()
found = []
for frames, seconds in json.load(sys.stdin):
    about = VideoMetadata(total_num_frames=frames, fps=frames / seconds, duration=seconds)
    stream = SimpleNamespace(frames=frames, duration=seconds, time_base=1)
    found.append({
        "qwen3": qwen3.sample_frames(about, fps=2).tolist(),
        "smolvlm": smolvlm.sample_frames(about, num_frames=64, fps=2).tolist(),
        "internvl": internvl.sample_frames(about, num_frames=min(8, frames), initial_shift=True).tolist(),
        "llamafactory": BasePlugin._get_video_sample_indices(None, stream, video_fps=2.0, video_maxlen=128).tolist(),
    })
print(json.dumps(found))
"""
LIMITS = {"qwen3": (4, 768), "smolvlm": (1, 64), "internvl": (8, 8), "llamafactory": (1, 128)}


@pytest.mark.long
def test_the_frames_are_those_of_each_library() -> None:
    found = qwen(BY_LIBRARIES, given=json.dumps(CASES))
    assert len(found) == len(CASES) > 60
    for (frames, seconds), theirs in zip(CASES, found, strict=True):
        for rule, numbers in theirs.items():
            least, most = LIMITS[rule]
            ours = sample_frames(rule, frames, seconds, 2, min_frames=least, max_frames=most)
            assert ours.tolist() == numbers, (rule, frames, seconds)


def test_every_nth_frame_as_llava_video_takes_them() -> None:
    """Its loader needs decord: one frame a second of 10 s at 30, and 8 of all where there would be more."""
    assert sample_frames("llava", 300, 10.0, 1, min_frames=1, max_frames=64).tolist() == list(range(0, 300, 30))
    assert sample_frames("llava", 300, 10.0, 1, min_frames=1, max_frames=8).tolist() == [
        0,
        42,
        85,
        128,
        170,
        213,
        256,
        299,
    ]


@pytest.mark.parametrize("rule", RULES)
def test_every_way_gives_the_frames_of_a_rule(rule: str, tmp_path: Path) -> None:
    """A burst, frames packed of encoded videos, and the sampler."""
    for name, count, rate in (("ten", 321, 30), ("short", 5, 24), ("one", 1, 25)):
        write(tmp_path / "src" / f"{name}.mp4", constant(count, rate), rate=Fraction(rate))
    options = ("--sample-fps", 2, "--sample-max", 9, "--sample-rule", rule)
    assert transcode(tmp_path / "src", tmp_path / "ready", *options, "--quiet", verb="burst").code == 0
    shown = numbers_in(tmp_path / "ready")
    assert transcode(tmp_path / "src", tmp_path / "ready", verb="validate").code == 0
    again = transcode(tmp_path / "src", tmp_path / "ready", *options, verb="burst")
    assert "3 done before" in again.err
    dataset = VideoDataset(
        VideoFiles(sorted((tmp_path / "src").iterdir())), clips=sample_fps(2, max_frames=9, rule=rule)
    )
    for item in dataset:
        assert item["indexes"][item["frame_mask"]].tolist() == shown[item["id"]]
    assert transcode(tmp_path / "src", tmp_path / "encoded", "--quiet").code == 0
    ran = transcode(tmp_path / "encoded", tmp_path / "frames", "--to", "frames", *options, verb="pack")
    assert ran.code == 0, ran.err
    assert {id_: line["frame_numbers"] for id_, line in lines(tmp_path / "frames").items()} == shown


def test_another_rule_is_another_setting_and_an_unknown_one_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "src" / "a.mp4", constant(60, 30))
    assert transcode(tmp_path / "src", tmp_path / "out", "--sample-fps", 2, "--quiet", verb="burst").code == 0
    assert (
        transcode(tmp_path / "src", tmp_path / "out", "--sample-fps", 2, "--sample-rule", "qwen", verb="burst").code
        == 0
    )
    ran = transcode(tmp_path / "src", tmp_path / "out", "--sample-fps", 2, "--sample-rule", "llava", verb="burst")
    assert ran.code == 2 and "different settings" in ran.err
    assert transcode(tmp_path / "src", tmp_path / "other", "--sample-rule", "llava", verb="burst").code == 2
    with pytest.raises(SettingsError, match="give one of qwen, qwen3"):
        sample_fps(2, max_frames=8, rule="none")


TOLD = """
import json, os, sys
os.chdir(sys.argv[1])
from qwen_vl_utils import fetch_video
from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor
found = {}
for line in map(json.loads, open("videos.jsonl")):
    # The pictures of a long video would be scaled for a minute; it is told the same of smaller ones.
    _, about = fetch_video({**line, "max_pixels": 4096, "min_pixels": 1024}, image_patch_size=16, return_video_metadata=True)
    found[line["id"]] = Qwen3VLProcessor._calculate_timestamps(None, list(about["frames_indices"]), about["fps"], 2)
print(json.dumps(found))
"""


def in_pairs(times: Iterable[float]) -> list[float]:
    """What Qwen3-VL should be told: the mean time of two frames, that count from the first."""
    values = list(times)
    values += values[-1:] * (len(values) % 2)
    return [(one + other) / 2 - values[0] for one, other in zip(values[::2], values[1::2], strict=True)]


@pytest.mark.long
def test_a_model_is_told_when_frames_are_shown(tmp_path: Path) -> None:
    """From 0.2 s to two hours, within 0.05 s; of two hours, frames were told up to 8.6 s early."""
    clips = {"0.2": (5, Fraction(24)), "1": (25, Fraction(25)), "10": (300, Fraction(30)), "10.7": (321, Fraction(30))}
    clips |= {"33": (989, Fraction(30000, 1001)), "400": (4000, Fraction(10)), "2 h": (72_000, Fraction(10))}
    for name, (count, rate) in clips.items():
        write(tmp_path / "src" / f"{name}.mp4", constant(count, rate), rate=rate, g="600")
    (tmp_path / "cuts.csv").write_text(f"path,id,start,end\n{tmp_path}/src/10.mp4,cut,2.5,9\n")
    for name, source in (("src", tmp_path / "src"), ("cuts", tmp_path / "cuts.csv")):
        burst(source, tmp_path / f"{name}-ready", sample_fps=2)
        pack(tmp_path / f"{name}-ready", tmp_path / f"{name}-frames", to="frames")
        told = qwen(TOLD, tmp_path / f"{name}-frames")
        for id_, line in lines(tmp_path / f"{name}-frames").items():
            due = in_pairs(line["timestamps"])
            assert len(told[id_]) == len(due) and told[id_] == pytest.approx(due, abs=0.05), id_
    assert len(manifest(tmp_path / "src-ready")) == len(clips)


DIALOGUES = """
import importlib.util, json, os, sys, types
import llamafactory
part = types.ModuleType("llamafactory.data")
part.__path__ = [os.path.join(os.path.dirname(llamafactory.__file__), "data")]
sys.modules["llamafactory.data"] = part
from llamafactory.data.converter import SharegptDatasetConverter
from llamafactory.data.parser import DatasetAttr
of_openai = {"messages": "messages", "role_tag": "role", "content_tag": "content", "user_tag": "user", "assistant_tag": "assistant"}
tags = {"conversations": {}, "messages": of_openai}[sys.argv[2]]
about = DatasetAttr("file", "made", formatting="sharegpt", videos="videos", **tags)
convert = SharegptDatasetConverter(about, types.SimpleNamespace(media_dir=sys.argv[1]))
with open(os.path.join(sys.argv[1], "videos.jsonl")) as file:
    print(json.dumps([convert(json.loads(line)) for line in file]))
"""


def captioned(folder: Path, **labels: Any) -> Path:
    write(folder / "a.mp4", constant(60, 30))
    (folder / "table.jsonl").write_text(json.dumps({"path": "a.mp4", "id": "a", **labels}) + "\n")
    burst(folder / "table.jsonl", folder / "ready", sample_fps=2)
    return folder / "ready"


@pytest.mark.parametrize("form", ["conversations", "messages"])
def test_captions_become_dialogues(form: str, tmp_path: Path) -> None:
    ready = captioned(tmp_path, caption="Ein Würfel — 数字", prompt="What is shown?", note="n")
    pack(ready, tmp_path / "frames", to="frames", captions_as=form)
    line = lines(tmp_path / "frames")["a"]
    said = [list(turn.values()) for turn in line[form]]
    names = ("human", "gpt") if form == "conversations" else ("user", "assistant")
    assert said == [[names[0], "<video>What is shown?"], [names[1], "Ein Würfel — 数字"]]
    assert line["caption"] == "Ein Würfel — 数字" and line["note"] == "n"


@pytest.mark.long
@pytest.mark.parametrize("form", ["conversations", "messages"])
def test_dialogues_are_read_by_llama_factory(form: str, tmp_path: Path) -> None:
    ready = captioned(tmp_path, caption="a cube")
    pack(ready, tmp_path / "frames", to="frames", captions_as=form)
    (found,) = qwen(DIALOGUES, tmp_path / "frames", form)
    assert found["_prompt"] == [{"role": "user", "content": "<video>Describe the video."}]
    assert found["_response"] == [{"role": "assistant", "content": "a cube"}]
    assert [Path(name).is_file() for name in found["_videos"][0]] == [True] * 4


def test_a_video_without_a_caption_is_named(tmp_path: Path) -> None:
    ready = captioned(tmp_path, note="n")
    ran = transcode(ready, tmp_path / "frames", "--to", "frames", "--captions-as", "messages", verb="pack")
    assert ran.code == 2 and "a: has no label caption" in ran.err and not (tmp_path / "frames").exists()
    assert (
        "needs --to" in transcode(ready, tmp_path / "x", "--to", "gulp", "--captions-as", "messages", verb="pack").err
    )
