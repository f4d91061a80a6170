"""The model hub over HTTP: what a repository holds, and byte ranges of its files.

Listings, tokens, addresses and the offline switch are the hub client's (`HF_TOKEN`, `HF_HUB_OFFLINE`). File bodies are
read with httpx instead, because the client's own download can neither resume after its process ended nor be cancelled,
and its xet transfer additionally has no timeout for a server that stops sending. The plain address of a file works for
every repository, whatever stores it. The token goes to the endpoint only, and redirects only to hosts that are known.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from urllib.parse import SplitResult, urlsplit

import httpx
from huggingface_hub import HfApi, constants, hf_hub_url
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, OfflineModeIsEnabled
from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]  # documented, not listed in __all__

from ostinatod import __version__
from ostinatod.errors import ModelNameError, PullError
from ostinatod.store.hub_errors import RESUME, HubUnavailable, refusal, unavailable
from ostinatod.store.socket_watch import shut_when_set
from ostinatod.store.variants import RemoteFile

_PUBLIC_HOSTS = ("huggingface.co", "hf.co", "hf-mirror.com")
"""With their subdomains: the hub, a mirror, and where they store files."""
_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_MAX_REDIRECTS = 5
_CONNECT_S = 15.0
_LIBRARY_ERROR: type[Exception] = HfHubHTTPError.__mro__[1]
"""Root of all errors of the HTTP library below the hub client, which is another one from its version 2 on."""


@dataclass(frozen=True, slots=True)
class Listing:
    """What a repository holds at one commit. `repository` is spelt as the hub spells it."""

    repository: str
    commit: str
    files: tuple[RemoteFile, ...]


class Hub:
    """A connection to the hub at `endpoint`; `stall_s` is how long it may send nothing. Close it after use.

    Raises PullError for an endpoint that is not https, unless it is on this machine.
    """

    def __init__(self, endpoint: str, *, stall_s: float) -> None:
        self._endpoint = endpoint.rstrip("/")
        self._address = urlsplit(self._endpoint)
        if not _is_safe(self._address):
            raise PullError(
                f"expected an https address for the model hub, found {endpoint!r}",
                hint="Set HF_ENDPOINT or the setting hub_endpoint to an address such as https://huggingface.co.",
            )
        self._stall_s = stall_s
        # else the client asks the hub for names of coding agents once a day, and tells it which one is at work
        constants.HF_HUB_DISABLE_TELEMETRY = True
        self._client = httpx.Client(timeout=httpx.Timeout(stall_s, connect=min(_CONNECT_S, stall_s)))

    def __enter__(self) -> Hub:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def listing(self, repository: str) -> Listing:
        """The files of a repository's newest commit.

        Raises HubUnavailable where trying again may help, PullError where it will not.
        """
        api = HfApi(endpoint=self._endpoint, library_name="ostinato", library_version=__version__)
        try:
            info = api.model_info(repository, files_metadata=True, timeout=self._stall_s)
        except HFValidationError as error:
            raise ModelNameError(f"the hub knows no repository names like {repository!r}: {error}") from error
        except OfflineModeIsEnabled as error:
            raise HubUnavailable("HF_HUB_OFFLINE is set", hint="Unset it to reach the hub.", may_retry=False) from error
        except HfHubHTTPError as error:
            response = error.response
            raise refusal(response.status_code, response.headers, repository, self._endpoint) from error
        except _LIBRARY_ERROR as error:
            raise unavailable(error, self._endpoint) from error
        except (ValueError, TypeError, KeyError) as error:
            reason = f"{self._endpoint} answers, but not like a model hub"
            hint = "Check HF_ENDPOINT, and whether this network wants a sign-in first."
            raise HubUnavailable(reason, hint=hint, may_retry=False) from error
        files = tuple(
            RemoteFile(
                path=sibling.rfilename,
                size_bytes=(sibling.lfs.size if sibling.lfs else sibling.size) or 0,
                sha256=sibling.lfs.sha256 if sibling.lfs else None,
                git_sha1=sibling.blob_id,
            )
            for sibling in info.siblings or ()
        )
        same_name = info.id and info.id.lower() == repository.lower()
        return Listing(info.id if same_name else repository, info.sha or "", files)

    @contextmanager
    def open(
        self, listing: Listing, file: RemoteFile, start: int, end: int, cancelled: threading.Event
    ) -> Iterator[httpx.Response]:
        """Bytes `start` up to `end` of a file, as a response that is still to be read.

        Status 206 carries that range; 200 the whole file, from a server that ignores ranges. Reading fails soon after
        `cancelled` is set. Raises HubUnavailable where trying again may help, also while the body is read, and
        PullError where it will not.
        """
        url = hf_hub_url(listing.repository, file.path, revision=listing.commit, endpoint=self._endpoint)
        headers = build_hf_headers(library_name="ostinato", library_version=__version__)
        headers |= {"Range": f"bytes={start}-{end - 1}", "Accept-Encoding": "identity"}
        try:
            response = self._follow(url, headers)
            try:
                if response.status_code not in (200, 206):
                    raise refusal(response.status_code, response.headers, listing.repository, self._endpoint)
                if response.status_code == 206 and _range_start(response) != str(start):
                    raise HubUnavailable(f"{self._endpoint} sent another range than was asked for", hint=RESUME)
                with shut_when_set(cancelled, response.extensions.get("network_stream")):
                    yield response
            finally:
                response.close()
        except httpx.HTTPError as error:
            raise unavailable(error, self._endpoint) from error

    def _follow(self, url: str, headers: dict[str, str]) -> httpx.Response:
        """The response after redirects, without the token wherever the origin is another one."""
        origin = _origin(urlsplit(url))
        for _ in range(_MAX_REDIRECTS):
            response = self._client.send(self._client.build_request("GET", url, headers=headers), stream=True)
            if response.next_request is None:
                return response
            response.close()
            url = str(response.next_request.url)
            target = urlsplit(url)
            if not self._may_redirect_to(target):
                raise PullError(
                    f"the hub redirects the download to {target.scheme}://{target.hostname}, which is not a known host"
                )
            if _origin(target) != origin:
                headers = {key: value for key, value in headers.items() if key.lower() != "authorization"}
        raise PullError(f"expected a file, found more than {_MAX_REDIRECTS} redirects")

    def _may_redirect_to(self, target: SplitResult) -> bool:
        """A private endpoint may keep its files wherever its operator likes; the public ones keep them at home."""
        host = target.hostname or ""
        if host == self._address.hostname:
            return target.scheme == self._address.scheme or target.scheme == "https"
        if _is_public(self._address.hostname or ""):
            return target.scheme == "https" and _is_public(host)
        return _is_safe(target) and (host not in _LOOPBACK or self._address.hostname in _LOOPBACK)


def _range_start(response: httpx.Response) -> str:
    content_range: str = response.headers.get("content-range", "")
    return content_range.removeprefix("bytes ").partition("-")[0]


def _is_safe(address: SplitResult) -> bool:
    is_loopback = address.hostname in _LOOPBACK
    return bool(address.hostname) and (address.scheme == "https" or (address.scheme == "http" and is_loopback))


def _is_public(host: str) -> bool:
    return any(host == public or host.endswith(f".{public}") for public in _PUBLIC_HOSTS)


def _origin(address: SplitResult) -> tuple[str, str | None, int | None]:
    return address.scheme, address.hostname, address.port
