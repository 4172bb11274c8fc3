"""Values for the templates of the web UI."""

from urllib.parse import quote


def case_url(key: str) -> str:
    """Return the URL path of a case; its slashes stay, since proxies reject quoted ones."""
    return f"/cases/{quote(key, safe='/')}"
