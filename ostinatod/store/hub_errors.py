"""What the hub's refusals mean to the person who asked for a model."""

from __future__ import annotations

from collections.abc import Mapping

from ostinatod.errors import PullError

RESUME = "Run the same command again to resume."

_RETRIED = (408, 425, 429)
_LONGEST_RETRY_AFTER_S = 120.0


class HubUnavailable(Exception):
    """The hub could not be used just now. `wait_s` is how long it asks to be left alone, 0 if it does not say."""

    def __init__(self, reason: str, *, hint: str, may_retry: bool = True, wait_s: float = 0.0) -> None:
        super().__init__(reason)
        self.reason = reason
        self.hint = hint
        self.may_retry = may_retry
        self.wait_s = wait_s


def unavailable(error: Exception, endpoint: str) -> HubUnavailable:
    """A connection that failed, in words."""
    name = type(error).__name__
    reason = "it stopped sending" if name == "ReadTimeout" else f"{name}: {error}".rstrip(": ")
    return HubUnavailable(f"{endpoint}: {reason}", hint=f"Check the network and HF_ENDPOINT. {RESUME}")


def refusal(status: int, headers: Mapping[str, str], repository: str, endpoint: str) -> PullError | HubUnavailable:
    """The error for an HTTP status other than success: HubUnavailable if waiting may help, else PullError."""
    code = headers.get("x-error-code", "")
    said = headers.get("x-error-message", "").strip()
    because = f" ({said})" if said else ""
    if status in _RETRIED or status >= 500:
        reason = "it asks for fewer requests" if status == 429 else f"it answers with status {status}"
        hint = f"Wait a little. {RESUME}"
        return HubUnavailable(f"{endpoint}: {reason}{because}", hint=hint, wait_s=_retry_after_s(headers))
    if code == "GatedRepo" or status == 403:
        return PullError(
            f"{repository} is gated and your account has no access to it{because}",
            hint=f"Accept its terms at {endpoint}/{repository}, then set HF_TOKEN to a token of that account.",
        )
    if status == 401:
        return PullError(
            f"{endpoint} has no public repository {repository}{because}",
            hint="Check the spelling. If it is private or gated, set HF_TOKEN to a token that may read it.",
        )
    if code == "EntryNotFound":
        return PullError(f"a file of {repository} is no longer there{because}", hint="Run the same command again.")
    if status == 404:
        return PullError(f"{endpoint} has no repository {repository}{because}", hint="Check the spelling.")
    return PullError(f"{endpoint} refused {repository} with status {status}{because}")


def _retry_after_s(headers: Mapping[str, str]) -> float:
    text = headers.get("retry-after", "").strip()
    return min(float(text), _LONGEST_RETRY_AFTER_S) if text.isdigit() else 0.0
