"""Credentials of object stores, as their own tools find them.

obstore reads the environment, web identities and the metadata services of clouds, but no files. AWS's tools also read
`~/.aws/credentials` and `~/.aws/config`, and a bucket may be public. Profiles whose credentials are fetched (SSO, an
assumed role, a program) are left to boto3.
"""

from __future__ import annotations

import configparser
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from vidprep.formats.errors import MissingError, StorageError

# Any of these says where credentials come from; option names are also accepted with the prefix aws_.
OF_ENVIRONMENT = (
    "AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_SKIP_SIGNATURE",
)  # fmt: skip
OF_OPTIONS = frozenset(
    ("access_key_id", "credential_provider", "skip_signature", "config", "imdsv1_fallback", "metadata_endpoint")
)
# Names of an AWS configuration file, and those of obstore.
OF_FILES = {
    "aws_access_key_id": "access_key_id",
    "aws_secret_access_key": "secret_access_key",
    "aws_session_token": "session_token",
    "region": "region",
    "endpoint_url": "endpoint",
}

# Keys of a profile whose credentials are not in the file.
FETCHED = ("sso_session", "sso_start_url", "role_arn", "credential_process", "login_session", "web_identity_token_file")


class FoundOptions(NamedTuple):
    """Options for obstore.

    Attributes:
        has_credentials: Whether they, or the environment, say where credentials come from. Otherwise a bucket may be public,
            or the machine may have some
    """

    options: dict[str, Any]
    has_credentials: bool


def add_credentials(url: str, options: Mapping[str, Any]) -> FoundOptions:
    """Return options for obstore, with what the files of AWS's tools add for an S3 URL.

    Args:
        url: The URL.
        options: Options that were given; they count before the files.

    Raises:
        MissingError: The credentials of the profile are fetched, and boto3 is not installed.
        StorageError: They cannot be fetched.
    """
    made, has_credentials = dict(options), True
    protocol = url.partition("://")[0]
    if protocol in ("s3", "s3a"):
        given = {name.removeprefix("aws_") for name in made}
        if not given & OF_OPTIONS and not any(os.environ.get(name) for name in OF_ENVIRONMENT):
            made = _read_profile() | made
            has_credentials = "access_key_id" in made or "credential_provider" in made
        elif "endpoint" not in given and "AWS_ENDPOINT_URL" not in os.environ and "AWS_ENDPOINT" not in os.environ:
            made |= {name: value for name, value in _read_profile().items() if name == "endpoint"}
    return FoundOptions(_add_http(url, made), has_credentials)


def _add_http(url: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return options that allow HTTP without TLS where that was asked for, or is what the URL or the endpoint says."""
    endpoint = str(options.get("endpoint") or options.get("aws_endpoint") or os.environ.get("AWS_ENDPOINT_URL") or "")
    # An option of the connection, which obstore refuses among those of the store, or panics.
    allowed = [options.pop(name) for name in list(options) if name.lower() in ("allow_http", "aws_allow_http")]
    if allowed or url.startswith("http://") or endpoint.startswith("http://"):
        options["client_options"] = {"allow_http": (allowed or [True])[0]} | dict(options.get("client_options") or {})
    return options


def _read_profile() -> dict[str, Any]:
    """Return what the configuration files of AWS's tools say for the profile in use."""
    profile, values = os.environ.get("AWS_PROFILE", "default"), dict[str, str]()
    places = (
        ("AWS_CONFIG_FILE", "config", f"profile {profile}"),
        ("AWS_SHARED_CREDENTIALS_FILE", "credentials", profile),
    )
    for variable, name, section in places:
        parser = configparser.RawConfigParser()
        try:
            parser.read(os.environ.get(variable) or Path.home() / ".aws" / name)
        except (configparser.Error, OSError, RuntimeError):
            continue
        for title in (section, profile):
            if parser.has_section(title):
                values |= parser[title]
    options: dict[str, Any] = {ours: values[theirs] for theirs, ours in OF_FILES.items() if theirs in values}
    if (kind := next((name for name in FETCHED if name in values), None)) is not None:
        for name in ("access_key_id", "secret_access_key", "session_token"):
            options.pop(name, None)
        options["credential_provider"] = _provider(profile, kind)
    return options


def _provider(profile: str, kind: str) -> Any:
    """Return a function that fetches the credentials of a profile when obstore needs them. Raises MissingError, StorageError."""
    try:
        import boto3
        from botocore.exceptions import BotoCoreError
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ModuleNotFoundError as error:
        raise MissingError(
            f"profile {profile} of ~/.aws has {kind}, for which {error.name} is needed: pip install boto3"
        ) from error
    try:
        return Boto3CredentialProvider(boto3.Session(profile_name=profile))
    except (BotoCoreError, ValueError) as error:
        raise StorageError(
            f"the credentials of profile {profile} of ~/.aws cannot be fetched by {kind}: {error}"
        ) from error
