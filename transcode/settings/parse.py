"""Parse values that users write (rates, sizes, bytes, places), and check the types of function arguments. Invalid values
raise SettingsError.
"""

from __future__ import annotations

import functools
import inspect
import re
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from vidprep.formats.errors import SettingsError, VidprepError
from vidprep.formats.model import FrameSize
from vidprep.formats.option import (
    ARGUMENTS,
    TAKEN,
    CodeText,
    Declared,
    code_of,
    document_options,
    fits,
    hints_of,
    options_of,
    unknown_keyword,
    words_for,
)
from vidprep.formats.profiles import CODECS
from vidprep.formats.storage.base import check_no_password, is_url, lacks_bucket, normalize
from vidprep.formats.storage.untrusted import INT64_MAX, MAX_NUMBER_LENGTH, ArrowStream, parse_fraction, rate_of

TAKEN[ArrowStream] = (lambda value: hasattr(value, "__arrow_c_stream__"), "a table of Arrow, pandas or polars")
P = ParamSpec("P")
R = TypeVar("R")


def check_types(*keywords: Declared) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator that checks the arguments of a public function and completes what `help` shows of it.

    The decorated function raises TypeError for a keyword that it does not have, and SettingsError, with the argument's name, for a value
    of another type than the annotation or one that the argument's Option rejects. Text is parsed where the Option has a parser. Types
    that `TAKEN` does not list are checked with `isinstance`.

    Args:
        keywords: The options that the function takes as ``**keywords``.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        bare = inspect.signature(function)
        declared = {each.name: each for each in options_of(function)}
        known = {each.keyword: each for each in keywords}
        positional = [name for name, each in bare.parameters.items() if each.kind is each.POSITIONAL_OR_KEYWORD]
        shown = _help_signature(bare, declared, keywords)
        hints = {each.keyword: each.taken for each in keywords}

        @functools.wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            if len(args) > len(positional):
                first = next(each for each in shown.parameters if each not in positional)
                raise TypeError(
                    f"{function.__name__}() takes only {' and '.join(positional)} by position; give the others by name, as {first}=…"
                )
            for keyword in kwargs:
                if keyword not in shown.parameters:
                    raise unknown_keyword(function.__name__, keyword, shown.parameters)
            bound = bare.bind(*args, **kwargs)
            accepted = _plain_hints(function) | hints
            for name, value in bound.arguments.items():
                if name in declared:
                    bound.arguments[name] = _parse(declared[name], name, value)
                    continue
                is_open = bare.parameters[name].kind is inspect.Parameter.VAR_KEYWORD
                for keyword, given in value.items() if is_open else ((name, value),):
                    _check_type(keyword, given, accepted.get(keyword), known)
            try:
                return function(*bound.args, **bound.kwargs)
            except VidprepError as error:
                error.use_keywords(lambda text: name_keywords(text, (*keywords, *declared.values())))
                raise

        checked.__signature__ = shown  # type: ignore[attr-defined]
        checked.__options__ = (*keywords, *declared.values())  # type: ignore[attr-defined]  # of which a command has flags
        checked.__doc__ = document_options(inspect.cleandoc(function.__doc__ or ""), [*declared.values(), *keywords])
        return checked

    return decorate


def _parse(declared: Declared, name: str, value: Any) -> Any:
    """Return the value of an option, checked: a single text of many is a list of one, and other texts are parsed."""
    if isinstance(value, str) and _is_many(declared):
        value = (value,)
    elif _is_written(value):
        value = declared.option.parse_value(name, value)
    declared.check(value)
    return value


def _check_type(keyword: str, given: object, hint: Any, known: Mapping[str, Declared]) -> None:
    """Raise SettingsError for a value of another type; None as the hint takes all."""
    if hint is None or fits(given, hint):
        return
    if keyword in known:
        raise known[keyword].wrong_type(given)
    raise SettingsError(f"<{keyword}>: give {words_for(hint)}", **{keyword: CodeText(repr(given))})


def name_keywords(text: str, options: Iterable[Declared]) -> str:
    """Return a message with keywords instead of flags: `fps=15` for `--fps 15`. Commands between backticks stay as they are."""
    known = {each.flag: each for each in options}

    def keyword_of(found: re.Match[str]) -> str:
        flag, value = found[1], found[2] or ""
        if flag not in known:
            return found[0]
        name, option = known[flag].keyword, known[flag].option
        if known[flag].hint is bool:
            return f"{name}=True{f' {value}' if value else ''}"
        if value in option.choices:
            return f"{name}={value!r}"
        return f"{name}={value}" if re.fullmatch(r"\d[\d./]*|[A-Z]", value) else f"{name} {value}".rstrip()

    parts = text.split("`")
    for place in range(0, len(parts), 2):
        part = re.sub(r"(?<![\w-])(--[a-z][a-z-]*[a-z])(?: ([\w/]+(?:\.\d+)?))?", keyword_of, parts[place])
        parts[place] = re.sub(r"(?<![\w/.-])(SRC|DST)(?![\w/-])", lambda name: ARGUMENTS[name[1]], part)
    return "`".join(parts)


def _help_signature(
    bare: inspect.Signature, declared: Mapping[str, Declared], keywords: Iterable[Declared]
) -> inspect.Signature:
    """Return a signature for `help` and editors: plain types, defaults as users write them."""
    parameters = []
    for each in bare.parameters.values():
        if each.name in declared:
            option = declared[each.name]
            default = option.option.written or each.default
            parameters.append(each.replace(annotation=code_of(option.taken), default=default))
        elif each.kind is not each.VAR_KEYWORD:
            parameters.append(each.replace(annotation=CodeText(each.annotation)))
    for more in keywords:
        default, annotation = more.option.written or more.default, code_of(more.taken)
        parameters.append(
            inspect.Parameter(more.keyword, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        )
    return bare.replace(parameters=parameters, return_annotation=CodeText(bare.return_annotation))


def _is_many(declared: Declared) -> bool:
    """Return whether a plain str must be wrapped, because a sequence of str is expected."""
    return declared.option.parse is None and typing.get_origin(declared.hint) is Sequence


def _is_written(value: object) -> bool:
    return isinstance(value, str) or (isinstance(value, tuple) and all(isinstance(each, str) for each in value))


@functools.cache
def _plain_hints(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the types of the arguments that are not options, by name."""
    hints = {name: hint for name, hint in hints_of(function).items() if name != "return"}
    return {
        name: hint for name, hint in hints.items() if typing.get_origin(hint) not in (typing.Unpack, typing.Annotated)
    }


def parse_rate(given: str | float | Fraction, keyword: str = "fps") -> Fraction:
    """Return exact frames per second: `15`, `12.5`, `30000/1001`; 23.976, 29.97 and 59.94 mean N·1000/1001."""
    text = str(given)
    try:
        rate = rate_of(text)
    except ValueError:
        raise SettingsError(
            f"<{keyword}>: give a number or a fraction, such as 15, 29.97 or 30000/1001", **{keyword: shorten(text)}
        ) from None
    if not Fraction(1, 1000) <= rate <= 1000:
        raise SettingsError(f"<{keyword}>: give a rate from 0.001 to 1000", **{keyword: text})
    return rate


def parse_source_rate(given: str | float | Fraction) -> Fraction:
    """Return the exact rate of sources; see `parse_rate`."""
    return parse_rate(given, "source_fps")


ALWAYS_SCORED, SCORES = ("psnr", "ssim"), ("psnr", "ssim", "vmaf", "xpsnr")


def parse_scores(given: str | tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of scores, in the order of SCORES; psnr and ssim are always among them."""
    names = {name.strip() for name in (given.split(",") if isinstance(given, str) else given)}
    if unknown := sorted(names - set(SCORES)):
        raise SettingsError(f"<score>: give some of {', '.join(SCORES)}", score=shorten(unknown[0]))
    return tuple(name for name in SCORES if name in names | set(ALWAYS_SCORED))


def parse_stream(given: str | int) -> int | None:
    """Return the number of a video stream; None for `best`."""
    if given == "best":
        return None
    try:
        return int(given)
    except ValueError:
        raise SettingsError("<video_stream>: give a number from 0, or best", video_stream=shorten(str(given))) from None


def parse_sides(given: str | Mapping[str, int] | tuple[tuple[str, int], ...]) -> tuple[tuple[str, int], ...]:
    """Return names with their sizes in pixels, from `wrist=128,top=240`."""
    if not isinstance(given, str):
        return tuple(sorted(dict(given).items()))
    try:
        pairs = [part.rsplit("=", 1) for part in given.split(",")]
        return tuple(sorted({name.strip("/ "): int(pixels) for name, pixels in pairs}.items()))
    except ValueError:
        raise SettingsError(
            "<side_of>: give names with pixels, such as wrist=128,top=240", side_of=shorten(given)
        ) from None


def parse_size(given: str | tuple[int, int], keyword: str = "size") -> FrameSize:
    """Parse `WxH` in pixels, or a pair of numbers, which is the value of an option. Raises SettingsError."""
    if not isinstance(text := given, str):
        return FrameSize(*given)
    match = re.fullmatch(r"(\d{1,9})[xX](\d{1,9})", text)
    if match is None:
        raise SettingsError(f"<{keyword}>: give WIDTHxHEIGHT in pixels, such as 224x224", **{keyword: shorten(text)})
    return FrameSize(int(match[1]), int(match[2]))


def parse_area(given: str | tuple[int, int]) -> FrameSize:
    """Parse the size of a bucket. Raises SettingsError."""
    return parse_size(given, "bucket_area")


def parse_segment(given: float | str) -> float | str:
    """Parse seconds, `auto` or `off`."""
    try:
        return float(given) if isinstance(given, str) and given not in ("auto", "off") else given
    except ValueError:
        return given  # invalid; the settings raise the error


def parse_names(given: str | Sequence[str]) -> tuple[str, ...]:
    """Parse comma-separated names, or a sequence of names."""
    return tuple(given.split(",") if isinstance(given, str) else given)


def parse_numbers(given: str | Sequence[int]) -> tuple[int, ...]:
    """Parse comma-separated numbers, or a sequence of numbers. Raises ValueError."""
    try:
        return tuple(map(int, given.split(",") if isinstance(given, str) else given))
    except ValueError:
        raise ValueError("give whole numbers separated by commas") from None


def parse_shares(given: str | Mapping[str, float]) -> dict[str, Fraction]:
    """Parse `train=0.8,val=0.1,test=0.1`, or a mapping: names and shares with a sum of 1."""
    try:
        if not isinstance(given, str | Mapping):
            raise ValueError
        pairs = [each.split("=") for each in given.split(",")] if isinstance(given, str) else list(given.items())
        shares = {str(name).strip(): parse_fraction(str(share).strip()) for name, share in pairs}
    except ValueError:
        shares = {}
    if not shares or "" in shares or len(shares) < len(pairs) or min(shares.values()) <= 0 or sum(shares.values()) != 1:
        raise SettingsError(
            "<split_by>: give names and shares that add up to 1, such as train=0.8,val=0.1,test=0.1", split_by=given
        )
    return shares


def parse_by_codec(given: Sequence[str]) -> dict[str, str]:
    """Parse a list of CODEC=LIST. Raises ValueError."""
    by_codec = {}
    for text in (given,) if isinstance(given, str) else given:
        codec, equals, values = text.partition("=")
        if not equals or codec not in CODECS:
            raise ValueError(f"give CODEC=VALUE,VALUE with a codec of {', '.join(CODECS)}")
        by_codec[codec] = values
    return by_codec


def parse_bytes(given: str | int) -> int:
    """Parse `1000000`, `500MB` (10**6) or `1GiB` (2**30). Raises ValueError."""
    match = re.fullmatch(r"(\d{1,20}(?:\.\d{1,20})?) ?(?:([kKMGT])(i?)B?|B)?", str(given))
    if match is None:
        raise ValueError("give bytes, such as 500MB or 1GiB")
    number, prefix, binary = match.groups()
    power = " kMGT".index(prefix.replace("K", "k")) if prefix else 0
    size = int(float(number) * (1024 if binary else 1000) ** power)
    if size > INT64_MAX:
        raise ValueError("there are not so many bytes; give bytes, such as 500MB or 1GiB")
    return size


def shorten(text: str) -> str:
    """Return a text shortened for a message: a value may have thousands of digits."""
    return text if len(text) <= MAX_NUMBER_LENGTH else f"{text[:MAX_NUMBER_LENGTH]}…"


def check_path(path: str) -> str:
    """Return a path that is not empty (an empty one would be the current folder). Raises SettingsError."""
    if not path.strip():
        raise SettingsError("an empty path was given (an unset variable?); name a file or folder")
    return path


def parse_source(source: Path | str | ArrowStream) -> Path | str | ArrowStream:
    """Return a source like `parse_place`; a table in memory is returned unchanged."""
    return parse_place(source) if isinstance(source, Path | str) else source


def parse_place(path: Path | str) -> Path | str:
    """Return a path, or a URL as text."""
    text = check_path(str(path)).removeprefix("file://")
    if not is_url(text):
        return Path(text)
    check_no_password(text)
    if lacks_bucket(text := normalize(text)):
        raise SettingsError(f"{text} names no bucket; give s3://bucket/folder")
    return text
