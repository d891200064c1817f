# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What a secret looks like where nobody knows it: by its name, by its own look, or by what a program was told.

Where a rule is in doubt, it takes out too much: a text that lost a word can still be read. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

LEFT_OUT = "(left out)"
MARK = "\0"  # stands for it while rules are at work: no text has it, and it is one sign
# What is counted, in the words of the list of contents.
KEY, HEADER, TOKEN, LOGIN, COMMAND = "private keys", "headers", "tokens", "logins in URLs", "arguments of commands"
NAMED, RANDOM = "values named key, token or password", "long random texts"

# -- private keys

KEY_BEGINS = re.compile(r"-{4,5} ?BEGIN [A-Z0-9 ]{0,30}PRIVATE KEY[A-Z ]{0,10}-{4,5}")
KEY_ENDS = re.compile(r"-{4,5} ?END[A-Z0-9 ]{0,40}(?:-{4,5})?")
KEY_LINES = 400  # of the longest
_KEY_BORDER = re.compile(r"[\"'\n]")
_KEY_WORD = re.compile(r"[A-Za-z0-9+/]{1,100}={0,2}")
_KEY_HEADER = re.compile(r"(?:(?:^|.* )(?:Proc-Type|DEK-Info): ?[\w,-]{0,100}|.*\]: |)\s*")

# -- names and values

# A key may also be what something is sorted by, and a check may pass.
_ANY = r"keys?\d?(?![a-z])|cookies?(?![a-z])|auth(?![a-z])|(?<![\w-])(?:pass|tokens?|secrets?)(?![a-z])"
_PASSWORD = r"passw\w{0,9}|pass[ _-]?phrase|passcode|kennwort|psk(?![a-z])"  # noqa: S105
_SURE = rf"{_PASSWORD}|pwd(?![a-z])|pw(?![a-z])|(?<![a-z])(?:pin|puk)(?![a-z])|(?<!by)pass(?:in|out|es)?(?![a-z])"
_NAME = (
    r"(?:(?:api|access|private|secret|encryption|auth|master|shared|account)[_-]?keys?(?![a-z])"
    rf"|(?P<any>{_ANY})|(?P<sure>{_SURE})|(?:secret|token)s?(?![a-z])|credentials?|(?<![a-z])t?otp(?![a-z])"
    r"|authorization)(?P<rest>[\w-]{0,40})"
)
# Names that look like one of a secret and say where it is, of what kind or how many.
_HARMLESS = re.compile(r"(?i)(?:path|file|dir|folder|type|mode|len|length|count|limit|size|format|method|name|_ms|_s)$")
_NOTHING = re.compile(r"(?i)\s*[\"']?(?:None|null|true|false|\*+|\\|\0.*|chauthtok\).*)?[\"']?[,;}\])]*$")
_NUMBER = re.compile(r"[\"']?-?\d{1,9}(?:\.\d*)?[\"']?(?:[,;}\])\s]|$)")
_SORTED_BY = re.compile(r"[\"']?[A-Za-z_]+(?:\.\w+)+(?![\w+/=-])|[A-Za-z'-]+(?: [a-z'-]+){2,}(?![\w=])")
_WORKING_DIRECTORY = re.compile(r"[\"']?/")
# What follows the word password in a sentence.
_SENTENCE = (
    r"(?!(?:for|is|was|looks|are|of|to|in|on|at|by|as|and|or|not|no|has|have|must|may|can|will|with|from|too|the|a|an|that|it"
    r"|auth\w*|attempts?|checks?|changed?|changes|expired|files?|hash|hashes|entry|prompt|logins?|required|given"
    r"|incorrect|wrong|mismatch|failed|failure|set|unset|manager|database|updated|needed|keyboard-interactive\S*)\b"
    r"|[-=:|/(.,;<>&]|[\w.-]{0,40}(?:psk|password)\b|$)"  # the next one is it
)
_OPEN, _SHUT = "\"'\u2018\u201c", "\"'\u2019\u201d"
_QUOTED = (
    r"\\\"(?:(?!\\\")[^\r\n])*\\\"|\"(?:[^\"\\\r\n]|\\.)*\"|'(?:[^'\\\r\n]|\\.)*'"
    rf"|[\u2018\u201c][^\r\n\u2019\u201d]*[\u2019\u201d]|[{_OPEN}][^\r\n]*"
)
_TEXT = re.compile(_QUOTED)
_VALUE = re.compile(rf"b?(?:{_QUOTED})|(?:(?![\"'](?:[\s,}}\]):;]|$))\S)+")
# To the end of the line, or of the string of JSON or Python in which this is said.
_REST = re.compile(r"(?:(?!\\{0,2}[\"'][ \t]*(?:[}\])]|,[ \t]*[\"'{\[]|,?$)|\\n)[^\r\n])*", re.MULTILINE)
_ARGUMENTS = re.compile(rf"[\"'],[^\]\n]*|{_REST.pattern}", re.MULTILINE)
# Further ones of several: of an option, and behind a comma where the name is that of several.
_MORE_WORDS = re.compile(r"(?:[ ]+(?!-)(?=[^\s\"']*[A-Z\d_-])[^\s\"'|;&<>]+)*")
_MORE_VALUES = re.compile(r"(?:(?:(?<=,)|,)[ ]{0,3}(?:\"[^\"\n]*\"|'[^'\n]*'|[^\s=:,\"']+)(?![\w\"']*\s?[=:]))*")
_MORE_ITEMS = re.compile(r"(?:,[ ]{0,3}[\"'](?!-)[^\"'\n]*[\"'])*")
_SEVERAL = re.compile(r"(?i)s\W*$")
_BLOCK = re.compile(r"[ \t]*(?:[|>][-+\d]*[ \t]*)?(?=\n)")
_LINE = re.compile(r"[^\n]*")
_OF_A_LIST = re.compile(r"\n[ \t]*(?:[\"'}\])]|[{\[][ \t]*\n)")
MAX_BRACKETS = 4000  # characters of a list or mapping
_GAP = r"[\s\"',]{1,4}"  # between words of a command, also of one that is a list


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    return found.end() if found else at


def to_match(match: re.Match[str]) -> int:
    return match.end()


def to_key(match: re.Match[str]) -> int:
    return key_ends(match.string, match.end())


def to_value(match: re.Match[str]) -> int:
    """A word, a text in quotes, a list or a mapping."""
    text, at = match.string, match.end()
    if text[at : at + 1] in tuple("([{"):
        return _bracket(text, at)
    end = _end(_VALUE, text, at)
    return _end(_MORE_VALUES, text, end) if end > at and _SEVERAL.search(match[0]) else end


def to_items(match: re.Match[str]) -> int:
    return _end(_MORE_ITEMS, match.string, to_value(match))


def to_words(match: re.Match[str]) -> int:
    return _end(_MORE_WORDS, match.string, to_value(match))


def to_rest(match: re.Match[str]) -> int:
    return _end(_TEXT, match.string, match.end()) if match.string[match.end()] in "\"'" else to_arguments(match)


def to_arguments(match: re.Match[str]) -> int:
    return _end(_ARGUMENTS, match.string, match.end())


def to_line(match: re.Match[str]) -> int:
    """A value of YAML: the line, and what stands below it where it is a block."""
    text, at = match.string, match.end()
    if text[at : at + 1] in tuple("([{"):
        return _bracket(text, at)
    below = _end(_BLOCK, text, at)
    if text[below : below + 1] != "\n":
        return _end(_LINE, text, at)
    indent = re.escape(match["indent"])
    return _end(re.compile(rf"(?:\n{indent}(?:[ \t]+|- )[^\n]*){{1,{KEY_LINES}}}"), text, below)


def _bracket(text: str, at: int) -> int:
    """Behind its end; one without goes no further than its line. Further lines are those of a list that is printed so,
    and no others: whoever writes a line of a log does not hide the next one."""
    depth, place, most = 0, at, min(len(text), at + MAX_BRACKETS)
    while place < most:
        sign = text[place]
        if sign in "\"'":
            place = max(_end(_TEXT, text, place), place + 1)
            continue
        if sign == "\n" and not _OF_A_LIST.match(text, place):
            break
        depth += (sign in "([{") - (sign in ")]}")
        place += 1
        if not depth:
            break
    return place


def is_secret(match: re.Match[str], value: str) -> bool:
    """By its name and by itself."""
    said = match.groupdict()
    if not value or _NOTHING.match(value) or _HARMLESS.search(said.get("rest") or ""):
        return False
    if said.get("sure"):
        return said["sure"].lower() != "pwd" or not _WORKING_DIRECTORY.match(value)
    if said.get("rest") is not None and _NUMBER.match(value):  # how many tokens, or which key
        return False
    return not (said.get("any") and _SORTED_BY.match(match.string, match.end()))


def says_secret(name: str) -> bool:
    """Of a variable or key."""
    found = re.search(_NAME, name, re.IGNORECASE)
    return found is not None and not _HARMLESS.search(name)


def leaves(name: str, value: Any, inside: bool = False) -> Iterator[str]:
    """All texts that are secret by their own name or by that of what they are in, at any depth. In a mapping with such
    a name those are it that have one, or all."""
    inside = inside or says_secret(name)
    if isinstance(value, Mapping):
        own = any(says_secret(str(key)) for key in value)
        for key, below in value.items():
            yield from leaves(str(key), below, inside and not own)
    elif isinstance(value, (list, tuple, set)):
        for below in value:
            yield from leaves("", below, inside)
    elif inside and value is not None and not isinstance(value, bool) and not str(value).startswith(("/", "~/")):
        yield str(value)


def is_chance(_match: re.Match[str], value: str) -> bool:
    return mixed(value)


@dataclass(frozen=True)
class Rule:
    """``pattern`` finds what stands before a secret and stays, or as its group ``v`` the secret itself. ``end`` finds
    how far that goes, and ``sure`` says whether it is one."""

    kind: str
    pattern: str
    end: Callable[[re.Match[str]], int] = to_match
    sure: Callable[[re.Match[str], str], bool] = is_secret

    @cached_property
    def compiled(self) -> re.Pattern[str]:
        return re.compile(self.pattern)


# Tokens that tell by their beginning whose they are.
TOKENS = (
    r"(?:hf_|api_org_|gh[opusr]_|github_pat_|gl[a-z]{2,5}-|xox[a-z]-|xapp-|nvapi-|dckr_[op]at_|npm_|pypi-|A[KS]IA|ABIA"
    r"|ACCA|AIza|ya29\.|GOCSPX-|eyJ|tskey-|shp(?:at|ca|pa|ss)_|SG\.|lin_api_|ntn_|do[opr]_v1_|hv[sbr]\."
    r"|AGE-SECRET-KEY-|ATATT|ATCTT|r8_|gsk_|xai-|pplx-|tgp_|rpa_|lsv2_|sbp_|dapi|figd_|PMAK-|rubygems_|ops_ey|wandb_v1_)"
    r"[\w.~+/=-]{12,}|[srp]k[-_][\w-]{16,}|\d{8,10}:AA[\w-]{30,40}"
)
RULES = (
    Rule(KEY, rf"(?P<v>{KEY_BEGINS.pattern})", to_key),
    # With which arguments others were started: the program is enough.
    Rule(
        COMMAND,
        r"(?:\bCOMMAND= ?[^\s;]+|\bCMD \(\s*\S+|\btype=EXECVE\b[^\n]{0,200}?\ba0=\S+|\(command continued\))[ \t]"
        r"|; ENV=|\bproctitle=|\btype=USER_CMD\b[^\n]{0,200}?\bcmd=",
        to_arguments,
    ),
    # Programs that are told secrets as arguments.
    Rule(
        COMMAND,
        rf"\blogin(?:{_GAP}[\w.:/-]+)?(?={_GAP}--?\w)[ \t]?|\b(?:chpasswd|wpa_passphrase|iwconfig)(?=[ \t\"',])[ \t]?"
        r"|\bcurl(?=[^\n]{0,300}?[\s\"'](?:-[bdEFHx]|--(?:cookie|data\S*|form|header|proxy|cert|oauth2\S*))[\s\"'=])"
        r"[ \t]?"
        r"|\b(?:sshpass|mysql\w*|mariadb\w*|mongo\w*|redis-cli|ldap[a-z]+|smbclient|htpasswd|ipmitool|useradd|usermod"
        rf"|snmp[a-z]+|sqlcmd|xfreerdp|7z[a-z]?)(?={_GAP}(?:[^\n]{{0,100}}?[\s\"'])?--?\w)[ \t]?",
        to_arguments,
    ),
    Rule(COMMAND, r"\b(?:echo|printf)[ \t]+(?P<v>[^|\n]{1,1000}?)(?=\s*\|)"),
    Rule(
        HEADER,
        r"(?i)(?:authorization|api-key|cookie|(?:auth|private|vault|security)-token|subscription-key)"
        r"\\?[\"']?\s{0,3}[:=]\s{0,3}(?=\S)",
        to_rest,
    ),
    Rule(HEADER, r"(?i)bearer(?:\s|%20|\+|:|=){1,3}[\"']?(?P<v>[\w.~+/=%-]{6,})"),
    Rule(HEADER, r"[Bb]asic\s{1,3}(?P<v>(?=[a-z]{0,40}[A-Z0-9])[\w+/-]{8,}={0,2})"),
    Rule(LOGIN, r"://(?P<v>[^\s/\"'<>]{1,300})(?=@)"),
    Rule(LOGIN, r"(?<![\w./@:-])(?P<v>[\w.+-]{1,64}:(?!//)[^\s:@/\"'()]{3,100})(?=@(?!sha\d)[\w-])"),
    Rule(
        LOGIN,
        r"(?<![\w-])(?:-[uU]|--(?:proxy-)?user)(?:[ =]{1,3}|[\"'],\s{0,3})?"
        r"(?=[\"']?(?!\d+:\d+\b)[^\s\"':%]+[:%][^\s\"'])",
        to_value,
    ),
    Rule(
        TOKEN,
        r"(?i)://(?:[^\s\"'<>/]{0,100}/){0,8}?(?:[^\s\"'<>/]{0,60}(?:hook|trigger|ntfy|hc-ping)[^\s\"'<>/]{0,60}/"
        r"|bot(?=\d))(?P<v>[^\s\"'<>]+)",
    ),
    Rule(
        TOKEN,
        rf"(?:(?<![A-Za-z0-9])|(?<=%[0-9A-Fa-f]{{2}})|(?<=\\[nrt]))(?P<v>{TOKENS})",
    ),
    Rule(
        TOKEN,
        r"(?P<v>\$(?:[1256y]|gy|7|2[abxy]?|apr1|md5|sha1|argon2\w{0,3}|scrypt|pbkdf2[\w-]{0,10})\$[\w./$,=+-]{8,}"
        r"|\{S?(?:SHA|MD5|CRYPT)\d{0,3}\}[\w+/=$.]{16,}|pbkdf2_sha\d+\$\d+\$[\w./$+=]{8,})",
    ),
    Rule(NAMED, r"(?i)[?&][\w.-]{0,40}(?:key|token|secret|signature|sig|password|credential)=(?P<v>[^&\s\"']+)"),
    # name: DB_PASSWORD, value: x
    Rule(
        NAMED,
        rf"(?i)(?:name|key|id)[\"']?\s{{0,3}}[:=]\s{{0,3}}[\"']?[\w.-]{{0,40}}?{_NAME}[\"']?\s{{0,3}},?\s{{0,40}}[\"']?"
        r"value[\"']?\s{0,3}[:=]\s{0,3}",
        to_value,
    ),
    # YAML, and JSON that is printed a line each
    Rule(
        NAMED,
        rf"(?im)^(?P<indent>[ \t]{{0,40}})[>-]?[ \t]{{0,3}}[\"']?[\w.-]{{0,40}}?{_NAME}[\"']?:(?:[ \t]{{1,3}}|(?=\n))",
        to_line,
    ),
    Rule(NAMED, rf"(?i)(?<![\w-])--?[\w-]{{0,40}}?{_NAME}[ =]{{1,3}}", to_words),
    Rule(
        NAMED,
        rf"(?i){_NAME}\\?[{_SHUT}]?(?:\[(?!\d+\])[^\]\n]{{0,60}}\]| for [^\s:]{{1,60}})?"
        r"\s{0,3}(?:=>|[:=](?!//))\s{0,3}",
        to_value,
    ),
    # ("password", "x") and ["--api-key", "x"]
    Rule(
        NAMED,
        rf"(?i)(?:[(\[]\s{{0,3}}b?[{_OPEN}][\w.-]{{0,40}}?|[\"']--?[\w-]{{0,40}}?){_NAME}[{_SHUT}]\s{{0,3}},\s{{0,3}}"
        rf"(?=b?[{_OPEN}])",
        to_items,
    ),
    # XML
    Rule(NAMED, rf"(?i)<[^<>\n]{{0,80}}?{_NAME}[^<>\n]{{0,80}}>(?:\s{{0,40}}<\w{{1,20}}>)?(?P<v>[^<>\n]+)(?=<)"),
    # password x
    Rule(
        NAMED,
        rf"(?i)(?P<sure>{_PASSWORD}|(?<![\w-])secret|wep-key\d?|(?:require|bind|root)_?p(?:w|ass))[ \t]{{1,3}}"
        rf"(?:--\w{{1,20}}[ \t])?(?:(?:is|was)[ \t])?{_SENTENCE}",
        to_value,
    ),
    Rule(NAMED, r"(?i)hexdump(?:_ascii)?\([^)\n]{0,40}\):[ \t]?", to_arguments),
    # the key 0123456789abcdef...
    Rule(
        NAMED,
        r"(?i)(?:keys?|tokens?|secrets?|credentials?|auth|cookie|login)[\"':]?\s{1,3}(?:(?:is|was)\s)?[\"'(]?"
        r"(?P<v>(?=[\w~+/=-]{0,80}\d)(?=[\w~+/=-]{0,80}[A-Za-z])[\w~+=-][\w~+/=-]{15,})",
    ),
    Rule(RANDOM, r"(?<![\w+/])(?!/)(?P<v>[A-Za-z0-9+/]{60,}={0,2})", sure=is_chance),
    Rule(RANDOM, r"(?<![\w-])(?P<v>[A-Za-z0-9_-]{32,})", sure=is_chance),
)
TURNS, DIGITS = 0.42, 3  # of changes between small and capital letters and digits: names have fewer


def left_out(text: str, counts: dict[str, int]) -> str:
    """With a mark in place of whatever a rule finds."""
    for rule in RULES:
        made, at = [], 0
        for match in rule.compiled.finditer(text):
            begin = match.start("v") if "v" in rule.compiled.groupindex else match.end()
            if match.start() < at or begin < at:
                continue
            end = rule.end(match)
            if rule.sure(match, text[begin:end]):
                made += [text[at:begin], MARK]
                at = end
                counts[rule.kind] = counts.get(rule.kind, 0) + 1
        text = "".join([*made, text[at:]])
    return text


def key_ends(text: str, at: int) -> int:
    """Behind a private key that began before ``at``. One without an end goes as far as its lines may be of a key, and
    one within a line no further than that or a quote: whoever writes a line of a log does not hide those of others."""
    border = _KEY_BORDER.search(text, at)
    place = border.start() if border else len(text)
    end = KEY_ENDS.search(text, at, place)
    if end:
        return end.end()
    for _line in range(KEY_LINES):
        if text[place : place + 1] != "\n":
            break
        after = text.find("\n", place + 1)
        after = len(text) if after < 0 else after
        end = KEY_ENDS.search(text, place, after)
        if end:
            return end.end()
        following = KEY_ENDS.search(text, after, after + 300)
        last = following is not None and "\n" not in text[after + 1 : following.start()]
        if not may_be_of_a_key(text[place + 1 : after], last):
            break
        place = after
    return place


def may_be_of_a_key(line: str, last: bool = False) -> bool:
    """Base64 and nothing else; or behind what a log puts before it, where it is long or looks like chance, or the next
    line is the end."""
    if _KEY_HEADER.fullmatch(line):
        return True
    line = line.strip()
    word = re.split(r"[\s:|)\]]", line)[-1]
    if not _KEY_WORD.fullmatch(word):
        return False
    kinds = len({"d" if sign.isdigit() else "u" if sign.isupper() else "l" for sign in word if sign.isalnum()})
    return word == line or last or len(word) >= 40 or (len(word) >= 8 and kinds == 3)


def mixed(text: str) -> bool:
    """Whether small and capital letters and digits follow each other as by chance."""
    plain = re.sub(r"[^A-Za-z0-9]", "", text)
    kinds = ["d" if sign.isdigit() else "u" if sign.isupper() else "l" for sign in plain]
    turns = sum(one != other for one, other in zip(kinds, kinds[1:]))
    return kinds.count("d") >= DIGITS and len(set(kinds)) == 3 and turns >= TURNS * len(kinds)
