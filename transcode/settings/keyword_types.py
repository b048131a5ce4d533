"""Types of the keywords of the Python functions. Written by `make generated` from the options of the dataclasses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Literal, TypedDict


class SourceKeywords(TypedDict, total=False):
    include: Sequence[str]
    exclude: Sequence[str]
    limit: int | None
    label_from_folder: bool
    split_from_folder: bool
    labels: str | Sequence[str] | None
    on_bad_row: Literal["fail", "skip"]
    keep: str | None
    captions: bool
    split_by: str | Mapping[str, float] | None
    split_group: str | None
    split_seed: int
    keep_source_suffix: bool


class ValidateKeywords(SourceKeywords, total=False):
    score: str | tuple[str, ...]
    vmaf_model: str


class ScanKeywords(SourceKeywords, total=False):
    fps: str | float | Fraction | None
    cut_origin: Literal["picture", "container"]
    source_fps: str | float | Fraction | None
    video_stream: str | int | None


class SampleKeywords(SourceKeywords, total=False):
    fps: str | float | Fraction | None
    cut_origin: Literal["picture", "container"]
    source_fps: str | float | Fraction | None
    video_stream: str | int | None
    short_side: int | None
    side_of: str | Mapping[str, int] | tuple[tuple[str, int], ...]
    size: str | tuple[int, int] | None
    fit: Literal["pad", "crop", "stretch"] | None
    multiple_of: int | None
    max_area: int | None
    min_area: int | None
    buckets: int | None
    bucket_area: str | tuple[int, int] | None
    scaler: Literal["bicubic", "bilinear", "area", "lanczos"]
    upscale: bool


class TrialKeywords(SampleKeywords, total=False):
    score: str | tuple[str, ...]
    vmaf_model: str


class RunKeywords(SampleKeywords, total=False):
    hdr: Literal["sdr", "keep"] | None
    on_damage: Literal["warn", "fail"]
    frames: str | None
    least_frames: int | None
    target_psnr: float | None
    target_mode: str
    target_vmaf: float | None
    min_psnr: float | None
    verify_every: int
    score: str | tuple[str, ...]
    vmaf_model: str
    backend: Literal["local", "dask", "ray"]
    cluster_address: str | None
    partition: str | None
    jobs: int | None
    actions: Literal["last", "mean", "sum"] | None
    images_to_video: bool
    overwrite: bool
    on_short: Literal["fail", "skip"]
    skip_failed: bool
    prune: bool
    events: str | Path | None
    metrics: str | Path | None
    timeout: float | None
    max_memory: str | int | None
    max_pixels: int
    max_frames: int


class TranscodeKeywords(RunKeywords, total=False):
    codec: Literal["h264", "hevc", "vp9", "av1"]
    encoder: str | None
    container: Literal["mp4", "mkv", "webm"] | None
    gop: int
    crf: float | None
    preset: str | None
    tune: Literal["psnr", "visual", "fastdecode"]
    pixel_format: str | None
    encoder_threads: int | None
    audio: Literal["drop", "copy", "aac", "opus"]
    engine: Literal["av", "ffmpeg"]
    segment: float | str
    format: Literal["files", "shards"]
    shard_size: str | int
    ffmpeg: str | Path | None


class BurstKeywords(RunKeywords, total=False):
    format: Literal["burst", "gulp", "webdataset", "tensor"]
    quality: int | None
    subsampling: Literal["420", "444", "gray"] | None
    shard_size: str | int
    sample_fps: float | None
    sample_max: int
    sample_min: int
    sample_rule: Literal["qwen", "qwen3", "smolvlm", "internvl", "llava", "llamafactory"]
