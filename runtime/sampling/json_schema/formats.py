"""The formats of strings that are enforced; others are annotations, as JSON Schema has them."""

from __future__ import annotations

_LEAP = r"([0-9]{2}(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)"
_DATE = (
    r"(([1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])"
    rf"|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))|{_LEAP}-02-29)"
)
_TIME = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
_OCTET = r"(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = rf"({_OCTET}\.){{3}}{_OCTET}"
_LABEL = r"[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
_PLAIN = r"[a-zA-Z0-9]{1,63}"
_HOST = rf"{_LABEL}(\.{_LABEL}){{0,4}}"
_ATOM = r"[a-zA-Z0-9!#$%&'*+\x2f=?^_`{|}~-]+"
_HEX = r"[0-9a-fA-F]"
_WORD = rf"{_HEX}{{1,4}}"
_IPV6 = "|".join(
    [
        rf"({_WORD}:){{7}}{_WORD}",
        rf"({_WORD}:){{1,7}}:",
        *(rf"({_WORD}:){{1,{7 - count}}}(:{_WORD}){{1,{count}}}" for count in range(1, 7)),
        rf":((:{_WORD}){{1,7}}|:)",
    ]
)
_CHAR = rf"([a-zA-Z0-9._~!$&'()*+,;=:@-]|%{_HEX}{{2}})"
_CHAR_NO_COLON = rf"([a-zA-Z0-9._~!$&'()*+,;=@-]|%{_HEX}{{2}})"
_TIMES = r"T([0-9]{1,9}H([0-9]{1,9}M([0-9]{1,9}S)?)?|[0-9]{1,9}M([0-9]{1,9}S)?|[0-9]{1,9}S)"
_DAYS = r"([0-9]{1,9}Y([0-9]{1,9}M([0-9]{1,9}D)?)?|[0-9]{1,9}M([0-9]{1,9}D)?|[0-9]{1,9}D)"

_MORE = rf"(\?({_CHAR}|[\x2f?])*)?(#({_CHAR}|[\x2f?])*)?"
_PATH = rf"{_CHAR}+(\x2f{_CHAR}*)*"
_AUTHORITY = rf"\x2f\x2f{_HOST}(:[0-9]{{1,5}})?(\x2f{_CHAR}*)*"
_URI = rf"[a-zA-Z][a-zA-Z0-9+.-]*:({_AUTHORITY}|\x2f({_PATH})?|{_PATH}){_MORE}"
_RELATIVE = rf"({_AUTHORITY}|\x2f({_PATH})?|({_CHAR_NO_COLON}+(\x2f{_CHAR}*)*)?){_MORE}"
_EMAIL = rf"{_ATOM}(\.{_ATOM})*@{_HOST}"
_POINTER = r'(\x2f([^~\x2f"\x5c\x00-\x1f]|~[01])*)*'

FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "duration": rf"P({_DAYS}({_TIMES})?|{_TIMES}|[0-9]{{1,9}}W)",
    "email": _EMAIL,
    "hostname": _HOST,
    "ipv4": _IPV4,
    "ipv6": _IPV6,
    "uuid": rf"{_HEX}{{8}}-({_HEX}{{4}}-){{3}}{_HEX}{{12}}",
    "uri": _URI,
    "iri": _URI,  # the ones of ASCII characters, as of the other international formats
    "uri-reference": rf"{_URI}|{_RELATIVE}",
    "iri-reference": rf"{_URI}|{_RELATIVE}",
    "idn-email": _EMAIL,
    "idn-hostname": rf"{_PLAIN}(\.{_PLAIN}){{0,4}}",
    "json-pointer": _POINTER,
    "relative-json-pointer": rf"(0|[1-9][0-9]{{0,8}})(#|{_POINTER})",
}
