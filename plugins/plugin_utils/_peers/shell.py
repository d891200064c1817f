# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Words of a shell's text as bash would make them, without running anything.

Quotes, continued lines, comments, variables and their defaults, arrays. What only a shell can know (``$(…)``, a
variable that the text gives no value) stays as it is written and is said.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError

MAX_WORDS = 20_000
MAX_WORD = 64 * 1024
MAX_ALL = 4 * 1024 * 1024
MAX_MISSING = 1000
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ASSIGNS = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=")
_EXPANSION = re.compile(r"\{([A-Za-z_]\w*|[0-9@*#?])(\[[@*]\])?(?:(:?[-+?=])((?:[^{}]|\$\{[^{}]*\})*))?\}", re.ASCII)
_HERE = re.compile(r"<<-?[ \t]*[\\'\"]?(\w+)['\"]?", re.ASCII)
_BARE = re.compile(r"[A-Za-z_]\w*|[0-9@*#?]", re.ASCII)
_DECLARES = frozenset({"export", "readonly", "local", "declare", "typeset"})
_OPERATORS = ("&&", "||", ";;", ";", "|", "&", "(", ")", "\n")


@dataclass
class Statement:
    """One simple command. ``plain``: its words are all that there is of it."""

    words: list[str] = field(default_factory=list)
    assigned: dict[str, str] = field(default_factory=dict)  # before its program
    missing: list[str] = field(default_factory=list)  # variables without a value
    defaulted: bool = False  # one that may have a value outside of the text has its default
    plain: bool = True


@dataclass
class Script:
    statements: list[Statement] = field(default_factory=list)
    values: dict[str, str] = field(default_factory=dict)
    arrays: dict[str, list[str]] = field(default_factory=dict)
    exported: list[str] = field(default_factory=list)
    more: bool = False  # operators, redirections: more than words


def read(text: str, values: Mapping[str, str], where: str = "") -> Script:
    """``values``: of variables that stand outside of the text."""
    reader = _Reader(text.replace("\\\r\n", "\\\n"), dict(values), where)
    reader.run()
    return reader.script


def expand(text: str, values: Mapping[str, str], missing: list[str], where: str = "", *, dollars: bool = False) -> str:
    """Variables in a text as Compose puts them in; ``dollars``: ``$$`` is one."""
    reader = _Reader(text, dict(values), where)
    made, position = "", 0
    while position < len(text):
        if text[position] != "$":
            made += text[position]
            position += 1
        elif dollars and text.startswith("$$", position):
            made, position = made + "$", position + 2
        else:
            value, position = reader.dollar(position)
            made += value if isinstance(value, str) else " ".join(value)
            if len(made) > MAX_WORD:
                raise reader.wrong("a word is too long")
    missing += [name for name in reader.statement.missing if name not in missing]
    return made


class _Reader:
    def __init__(self, text: str, values: dict[str, str], where: str) -> None:
        self.text, self.where, self.position = text, where, 0
        self.script = Script(values=values)
        self.statement = Statement()
        self.word, self.begun, self.quoted = "", False, False
        self.assigns: tuple[str, bool] | None = None
        self.array: list[str] | None = None
        self.size = 0
        self.inside: list[str] = []  # words that end texts for programs (<<EOF)

    def wrong(self, what: str) -> SparkError:
        return SparkError(f"its command cannot be read ({what})", self.where, "Correct its quotes")

    def run(self) -> None:
        text = self.text
        while self.position < len(text):
            sign = text[self.position]
            if text.startswith("\\\n", self.position):
                self.position += 2
            elif sign == "\\":
                self.add(text[self.position + 1 : self.position + 2])
                self.position += 2
            elif sign in " \t\r" or (sign == "\n" and self.array is not None):
                self.end_word()
                self.position += 1
            elif sign == "#" and not self.begun:
                end = text.find("\n", self.position)
                self.position = len(text) if end < 0 else end
            elif sign == "'":
                end = text.find("'", self.position + 1)
                if end < 0:
                    raise self.wrong("a quote ' is not closed")
                self.add(text[self.position + 1 : end], quoted=True)
                self.position = end + 1
            elif sign == '"':
                self.double()
            elif sign in ("$", "`"):
                self.unquoted()
            elif self.array is not None and sign == ")":
                self.end_array()
            elif sign in "<>":
                self.redirection()
            elif operator := next((one for one in _OPERATORS if text.startswith(one, self.position)), ""):
                self.operator(operator)
            else:
                self.add(sign)
                self.position += 1
        if self.array is not None:
            raise self.wrong("an array is not closed")
        self.end_statement()

    def add(self, text: str, *, quoted: bool = False) -> None:
        self.begun = True
        self.word += text
        self.quoted = self.quoted or quoted
        self.size += len(text) + 1  # a word of an array may be empty
        if len(self.word) > MAX_WORD or self.size > MAX_ALL:
            raise self.wrong("a word is too long")
        # NAME= or NAME=( at the beginning of a word that is not quoted.
        if text == "=" and not self.quoted and self.assigns is None and self.array is None:
            first = self.word.find("=") == len(self.word) - 1
            match = _ASSIGNS.fullmatch(self.word) if first else None
            head = self.statement.words[:1]
            if match and (not self.statement.words or head[0] in _DECLARES):
                self.assigns = (match[1], bool(match[2]))
                self.word = ""
                if self.text.startswith("(", self.position + 1):
                    self.array, self.begun = [], False
                    self.position += 1

    def double(self) -> None:
        text, self.position = self.text, self.position + 1
        self.add("", quoted=True)
        while True:
            if self.position >= len(text):
                raise self.wrong('a quote " is not closed')
            sign = text[self.position]
            if sign == '"':
                self.position += 1
                return
            if sign == "\\" and text[self.position + 1 : self.position + 2] in ("$", "`", '"', "\\", "\n"):
                following = text[self.position + 1]
                self.add("" if following == "\n" else following, quoted=True)
                self.position += 2
            elif sign in "$`":
                value, self.position = self.dollar(self.position)
                if isinstance(value, str):
                    self.add(value, quoted=True)
                else:
                    self.several(value)
            else:
                self.add(sign, quoted=True)
                self.position += 1

    def several(self, values: list[str]) -> None:
        for number, value in enumerate(values):
            if number:
                self.end_word()
            self.add(value, quoted=True)
        if not values and not self.word:
            self.begun = False

    def unquoted(self) -> None:
        before = len(self.statement.missing)
        value, self.position = self.dollar(self.position)
        if isinstance(value, str) and (
            self.assigns or len(self.statement.missing) > before or not self.statement.plain
        ):
            self.add(value)
            return
        fields = value.split() if isinstance(value, str) else [part for one in value for part in one.split()]
        if isinstance(value, str) and value[:1].isspace():
            self.end_word()
        for number, part in enumerate(fields):
            if number:
                self.end_word()
            self.add(part, quoted=True)
        if fields and isinstance(value, str) and value[-1:].isspace():
            self.end_word()

    def dollar(self, position: int) -> tuple[str | list[str], int]:
        """What stands for an expansion, and where it ends."""
        text = self.text
        if text[position] == "`" or text.startswith("$(", position):
            end = self.computed(position)
            self.statement.plain = False
            return text[position:end], end
        if match := _EXPANSION.match(text, position + 1):
            return self.braces(match, text[position : match.end()]), match.end()
        if match := _BARE.match(text, position + 1):
            return self.value(match[0], text[position : match.end()]), match.end()
        if text.startswith("${", position):  # ${x%y}, ${x:1}: only a shell does these
            end = text.find("}", position)
            end = len(text) if end < 0 else end + 1
            self.statement.plain = False
            return text[position:end], end
        return "$", position + 1

    def computed(self, position: int) -> int:
        if self.text[position] == "`":
            end = self.text.find("`", position + 1)
        else:
            deep, end = 0, -1
            for place in range(position + 1, len(self.text)):
                deep += {"(": 1, ")": -1}.get(self.text[place], 0)
                if not deep:
                    end = place
                    break
        if end < 0:
            raise self.wrong("a substitution is not closed")
        return end + 1

    def value(self, name: str, written: str) -> str:
        values = self.script.values
        if name in values:
            return values[name]
        if name in self.script.arrays:
            return (self.script.arrays[name] or [""])[0]
        self.miss(name)
        return written

    def miss(self, name: str) -> None:
        if name not in self.statement.missing:
            self.statement.missing.append(name)
        if len(self.statement.missing) > MAX_MISSING:
            raise self.wrong("too many variables without a value")

    def braces(self, match: re.Match[str], written: str) -> str | list[str]:
        name, several, operator, rest = match.groups()
        if several:
            if name in self.script.arrays:
                return self.script.arrays[name]
            self.miss(name)
            return written
        if not operator:
            return self.value(name, written)
        value = self.script.values.get(name)
        if name in self.script.arrays and value is None:
            value = " ".join(self.script.arrays[name])
        given = value is not None and (value != "" or ":" not in operator)
        if "+" in operator:
            return self.inner(rest) if given else ""
        if given:
            return str(value)
        self.statement.defaulted = True
        return self.inner(rest) if "?" not in operator else self.value(name, written)

    def inner(self, text: str) -> str:
        if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
            text = text[1:-1]
        return expand(text, self.script.values, self.statement.missing, self.where) if "$" in text else text

    def redirection(self) -> None:
        self.script.more = True
        self.statement.plain = False
        if self.word.isdigit():
            self.word, self.begun = "", False
        self.end_word()
        end = self.position
        if match := _HERE.match(self.text, end):
            self.inside.append(match[1])
            self.position = match.end()
            return
        while end < len(self.text) and self.text[end] in "<>&-":
            end += 1
        while end < len(self.text) and self.text[end] in " \t":
            end += 1
        while end < len(self.text) and self.text[end] not in " \t\n;|&":
            end += 1
        self.position = end

    def operator(self, operator: str) -> None:
        self.position += len(operator)
        while operator == "\n" and self.inside:
            end = re.compile(rf"^[ \t]*{self.inside.pop(0)}[ \t]*$", re.MULTILINE).search(self.text, self.position)
            self.position = end.end() if end else len(self.text)
        if operator not in ("\n", ";"):
            self.script.more = True
            self.statement.plain = self.statement.plain and operator != "|"
        self.end_statement()

    def end_word(self) -> None:
        if not self.begun and not (self.assigns and self.array is None):
            return
        if self.array is not None:
            self.array.append(self.word)
        elif self.assigns:
            name, appended = self.assigns
            value = self.script.values.get(name, "") + self.word if appended else self.word
            if len(value) > MAX_WORD:
                raise self.wrong("a value is too long")
            if self.statement.words:  # behind export
                self.script.values[name] = value
                self.script.exported.append(name)
            else:
                self.statement.assigned[name] = value
            self.assigns = None
        else:
            self.statement.words.append(self.word)
            if len(self.statement.words) > MAX_WORDS:
                raise self.wrong("too many words")
        self.word, self.begun, self.quoted = "", False, False

    def end_array(self) -> None:
        self.end_word()
        name, appended = self.assigns or ("", False)
        made = self.array or []
        if appended:
            self.script.arrays.setdefault(name, []).extend(made)
        else:
            self.script.arrays[name] = made
        self.script.values.pop(name, None)
        self.array, self.assigns = None, None
        self.position += 1

    def end_statement(self) -> None:
        self.end_word()
        done, self.statement = self.statement, Statement()
        if done.words[:1] and done.words[0] in _DECLARES:
            self.script.exported += [word for word in done.words[1:] if _NAME.fullmatch(word)]
            self.script.more = True
        elif done.words:
            self.script.statements.append(done)
        else:
            self.script.values.update(done.assigned)
            self.script.more = self.script.more or bool(done.assigned)
