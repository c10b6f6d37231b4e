"""What every answer carries, whoever gave it."""

from __future__ import annotations

from email.utils import formatdate

# There is no page yet: what a browser makes of an answer may load, run and be framed by nothing.
_POLICY = "; ".join(
    [
        *("default-src 'none'", "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'"),
        "require-trusted-types-for 'script'",
    ]
)
_TURNED_OFF = (
    *("accelerometer", "ambient-light-sensor", "autoplay", "battery", "bluetooth", "browsing-topics", "camera"),
    *("display-capture", "encrypted-media", "fullscreen", "gamepad", "geolocation", "gyroscope", "hid"),
    *("identity-credentials-get", "idle-detection", "local-fonts", "magnetometer", "microphone", "midi", "payment"),
    *("picture-in-picture", "publickey-credentials-get", "screen-wake-lock", "serial", "storage-access", "usb"),
    *("web-share", "window-management", "xr-spatial-tracking"),
)
_ALWAYS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": ", ".join(
        ["clipboard-read=(self)", "clipboard-write=(self)", *(f"{feature}=()" for feature in _TURNED_OFF)]
    ),
    "Cache-Control": "no-store",
}
_WITH_TLS = {"Strict-Transport-Security": "max-age=31536000"}


def of_every_answer(*, tls: bool) -> dict[str, str]:
    return {**_ALWAYS, **(_WITH_TLS if tls else {}), "Date": formatdate(usegmt=True)}


def for_other_origin(origin: str) -> dict[str, str]:
    """What lets the page of a configured origin read the answer."""
    return {"Access-Control-Allow-Origin": origin, "Vary": "Origin"}


def for_preflight() -> dict[str, str]:
    return {
        "Access-Control-Allow-Methods": "GET, POST",
        "Access-Control-Allow-Headers": "Authorization, Content-Type",
        "Access-Control-Max-Age": "600",
    }
