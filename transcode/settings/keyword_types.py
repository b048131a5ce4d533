"""Types of the keywords of the Python functions. Written by `make generated` from the options of the dataclasses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import TypedDict


class SourceKeywords(TypedDict, total=False):
    include: Sequence[str]
    exclude: Sequence[str]
    limit: int | None
    label_from_folder: bool
    labels: str | Sequence[str] | None
    on_bad_row: str
    split_by: str | Mapping[str, float] | None
    split_group: str | None
    split_seed: int
    keep_source_suffix: bool


class ValidateKeywords(SourceKeywords, total=False):
    score: str | tuple[str, ...]
    vmaf_model: str


class SampleKeywords(SourceKeywords, total=False):
    fps: str | float | Fraction | None
    cut_origin: str
    source_fps: str | float | Fraction | None
    video_stream: str | int | None
    short_side: int | None
    side_of: str | Mapping[str, int] | tuple[tuple[str, int], ...]
    size: str | tuple[int, int] | None
    fit: str
    multiple_of: int | None
    max_area: int | None
    min_area: int | None
    scaler: str
    upscale: bool


class TrialKeywords(SampleKeywords, total=False):
    score: str | tuple[str, ...]
    vmaf_model: str


class RunKeywords(SampleKeywords, total=False):
    hdr: str | None
    on_damage: str
    target_psnr: float | None
    target_mode: str
    target_vmaf: float | None
    min_psnr: float | None
    verify_every: int
    score: str | tuple[str, ...]
    vmaf_model: str
    backend: str
    cluster_address: str | None
    partition: str | None
    jobs: int | None
    actions: str | None
    images_to_video: bool
    overwrite: bool
    skip_failed: bool
    prune: bool
    events: str | Path | None
    metrics: str | Path | None
    timeout: float | None
    max_memory: str | int | None
    max_pixels: int
    max_frames: int


class TranscodeKeywords(RunKeywords, total=False):
    codec: str
    encoder: str | None
    container: str | None
    gop: int
    crf: float | None
    preset: str | None
    tune: str
    pixel_format: str | None
    encoder_threads: int | None
    audio: str
    engine: str
    split: float | str
    format: str
    shard_size: str | int
    ffmpeg: str | Path | None


class BurstKeywords(RunKeywords, total=False):
    format: str
    quality: int | None
    subsampling: str | None
    shard_size: str | int
    sample_fps: float | None
    sample_max: int
    sample_min: int
    sample_rule: str
