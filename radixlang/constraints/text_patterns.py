"""Patterns of texts from which a Python type can always be read: dates, durations, addresses.

Each is valid in both Python's syntax and ECMA 262's, without anchors. They match only texts that
the reader accepts: February has 29 days only in leap years, an hour ends at 23, a network has no
host bits. Other texts that a reader accepts (a week date, a time without colons) are left out.
"""

from __future__ import annotations

INT_PATTERN = r"-?(0|[1-9][0-9]{0,18})"
# exponents are limited so that a number of eighteen digits stays finite
FLOAT_PATTERN = (
    r"-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,17})?([eE][+-]?([0-9]{1,2}|1[0-9]{2}|2[0-8][0-9]))?"
)
DECIMAL = r"-?(?:0|[1-9][0-9]{0,27})(?:\.[0-9]{1,28})?(?:[eE][+-]?[0-9]{1,3})?"

_YEAR = "(?:[0-9]{3}[1-9]|[0-9]{2}[1-9][0-9]|[0-9][1-9][0-9]{2}|[1-9][0-9]{3})"
_BY_FOUR = "(?:0[48]|[2468][048]|[13579][26])"
_LEAP_YEAR = f"(?:[0-9]{{2}}{_BY_FOUR}|{_BY_FOUR}00)"
_DAYS = (
    "(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    "|02-(?:0[1-9]|1[0-9]|2[0-8]))"
)
DATE = f"(?:{_YEAR}-{_DAYS}|{_LEAP_YEAR}-02-29)"
_CLOCK = r"(?:[01][0-9]|2[0-3]):[0-5][0-9](?::[0-5][0-9](?:\.[0-9]{1,6})?)?"
_OFFSET = "(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
TIME = f"{_CLOCK}{_OFFSET}?"
DATETIME = f"{DATE}T{TIME}"
NAIVE_DATETIME = f"{DATE}T{_CLOCK}"
AWARE_DATETIME = f"{DATE}T{_CLOCK}{_OFFSET}"


def _chain(*parts: str) -> str:
    """Optional parts in their order, at least one of them."""
    tails = [
        part + "".join(f"(?:{later})?" for later in parts[place + 1 :])
        for place, part in enumerate(parts)
    ]
    return f"(?:{'|'.join(tails)})"


# numbers are limited so that days stay below a timedelta's 999,999,999 and seconds below 2 ** 32
_DATE_PART = f"(?:{_chain('1?[0-9]{1,6}Y', '[0-9]{1,6}M', '[0-9]{1,8}D')}|[0-8]?[0-9]{{1,8}}D)"
_TIME_PART = "T" + _chain("[0-9]{1,6}H", "[0-9]{1,6}M", r"[0-9]{1,6}(?:\.[0-9]{1,6})?S")
DURATION = f"-?P(?:[0-9]{{1,7}}W|{_DATE_PART}(?:{_TIME_PART})?|{_TIME_PART})"

_HEX = "[0-9a-fA-F]"
UUID = f"{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}"
BASE64 = "(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?"
BASE64URL = "(?:[A-Za-z0-9_-]{4})*(?:[A-Za-z0-9_-]{2}==|[A-Za-z0-9_-]{3}=)?"


def uuid_version(version: int) -> str:
    """A UUID of one version, in RFC 4122's variant."""
    return f"{_HEX}{{8}}-{_HEX}{{4}}-{version}{_HEX}{{3}}-[89abAB]{_HEX}{{3}}-{_HEX}{{12}}"


_OCTET = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_GROUP = f"{_HEX}{{1,4}}"
IPV4 = rf"(?:{_OCTET}\.){{3}}{_OCTET}"
IPV6 = "(?:" + "|".join(
    [
        f"(?:{_GROUP}:){{7}}{_GROUP}",
        f"(?:{_GROUP}:){{1,7}}:",
        *(f"(?:{_GROUP}:){{1,{7 - n}}}(?::{_GROUP}){{1,{n}}}" for n in range(1, 7)),
        f":(?:(?::{_GROUP}){{1,7}}|:)",
    ]
) + ")"  # fmt: skip
IPV4_INTERFACE = f"{IPV4}/(?:3[0-2]|[12]?[0-9])"
IPV6_INTERFACE = f"{IPV6}/(?:12[0-8]|1[01][0-9]|[1-9]?[0-9])"


def _ipv4_networks() -> str:
    """Addresses with a prefix length, host bits zero."""
    found = []
    for length in range(33):
        octets, bits = divmod(length, 8)
        parts = [_OCTET] * octets
        if bits:
            parts.append(f"(?:{'|'.join(map(str, range(0, 256, 2 ** (8 - bits))))})")
        parts += ["0"] * (4 - len(parts))
        found.append(r"\.".join(parts) + f"/{length}")
    return f"(?:{'|'.join(found)})"


def _ipv6_networks() -> str:
    """Whole groups of sixteen bits, `::`, and a prefix length that covers them."""
    found = [_numbers(0).join(["::/", ""])]
    found += [f"(?:{_GROUP}:){{{n}}}:/{_numbers(16 * n)}" for n in range(1, 8)]
    found.append(f"(?:{_GROUP}:){{7}}{_GROUP}/128")
    return f"(?:{'|'.join(found)})"


def _numbers(least: int) -> str:
    return f"(?:{'|'.join(map(str, range(least, 129)))})"


IPV4_NETWORK = _ipv4_networks()
IPV6_NETWORK = _ipv6_networks()

_LABEL = "[a-z0-9]+(?:-[a-z0-9]+)*"  # no two hyphens: they announce an encoded name
_LAST_LABEL = "[a-z](?:-?[a-z0-9]+)*"  # one of digits would be read as an address
_HOST = rf"(?:(?:{_LABEL}\.)*{_LAST_LABEL}|{IPV4}|\[{IPV6}\])"
_PORT = (
    "(?:[0-9]{1,4}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
)  # fmt: skip
_URL_TEXT = r"-A-Za-z0-9._~!$&'()*+,;=:@%\[\]|^"
_TAIL = f"(?:/[{_URL_TEXT}/]*)?(?:\\?[{_URL_TEXT}/?]*)?(?:#[{_URL_TEXT}/?]*)?"
_USER = "(?:[A-Za-z0-9._~!$&'()*+;=%-]+(?::[A-Za-z0-9._~!$&'()*+;=%-]*)?@)?"


def _other_than(words: list[str], first: str, letters: str, begun: str = "") -> str:
    """The pattern of words of `letters`, beginning with one of `first`, other than `words`."""
    taken = sorted({word[len(begun)] for word in words if word.startswith(begun) and word != begun})
    chars = letters if begun else first
    free = "".join(_escaped(char) for char in chars if char not in taken)
    found = [f"[{free}][{_escaped(letters)}]*"]
    found += [char + _other_than(words, first, letters, begun + char) for char in taken]
    return f"(?:{'|'.join(found)}){'?' if begun and begun not in words else ''}"


def _escaped(text: str) -> str:
    """A text as a pattern, or a part of a class, that both syntaxes read alike."""
    return "".join(f"\\{char}" if char in r"\^$.|?*+()[]{}/-" else char for char in text)


_LETTERS = "abcdefghijklmnopqrstuvwxyz"
# `file` has other rules for the authority
_SCHEME = _other_than(["file"], _LETTERS, f"{_LETTERS}0123456789+.-")
_FILE_URL = f"file:///[{_URL_TEXT}/]*"


_SET_APART = ["arpa", "invalid", "local", "localhost", "onion", "test"]  # refused in addresses
_ATOM = "[A-Za-z0-9_+-]{1,20}"
_SHORT_LABEL = "[a-z0-9]{1,20}(?:-[a-z0-9]{1,20}){0,2}"
EMAIL = (
    rf"{_ATOM}(?:\.{_ATOM}){{0,2}}@(?:{_SHORT_LABEL}\.){{1,3}}"
    f"{_other_than(_SET_APART, _LETTERS, _LETTERS)}"
)


def url(schemes: list[str] | None, *, many_hosts: bool = False) -> str:
    """An absolute URL with an authority, of any scheme or one of these."""
    named = [_escaped(scheme) for scheme in schemes or () if scheme != "file"]
    scheme = _SCHEME if schemes is None else f"(?:{'|'.join(named)})"
    host = f"{_HOST}(?::{_PORT})?"
    hosts = f"{host}(?:,{host})*" if many_hosts else host
    found = [f"{scheme}://{_USER}{hosts}{_TAIL}"] if schemes is None or named else []
    if not many_hosts and "file" in (schemes or ["file"]):
        found.append(_FILE_URL)
    if schemes is None:
        found.append(f"(?:mailto|tel|urn|news):[{_URL_TEXT}/]+")
    return f"(?:{'|'.join(found)})"


def one_of(texts: list[str]) -> str:
    """Exactly one of these texts."""
    return f"(?:{'|'.join(map(_escaped, texts))})"


def anchored(pattern: str) -> str:
    """The pattern with anchors, as the keyword `pattern` searches instead of matching."""
    return f"^(?:{pattern})$"
