# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The part of AWX's API that playbooks/awx.yml uses, in memory.

Fields, types and defaults are those that AWX 24.6.1 says of itself (OPTIONS). It is stricter than AWX in one thing: an
unknown key is an error, where AWX ignores it. ``Api.answer`` is the whole server; ``serve`` puts it behind HTTP.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
import urllib.parse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

PREFIX = "/api/v2/"
TOKEN = "token-of-the-tests"
PAGE = 25
YES_NO, TEXT, NUMBER, DOCUMENT, VARIABLES = "boolean", "string", "integer", "json", "variables"
TEMPLATE_ASKS = (
    *("scm_branch", "diff_mode", "variables", "limit", "tags", "skip_tags", "job_type", "verbosity", "inventory"),
    *("credential", "execution_environment", "labels", "forks", "job_slice_count", "timeout", "instance_groups"),
)
WORKFLOW_ASKS = ("inventory", "labels", "limit", "scm_branch", "skip_tags", "tags", "variables")


@dataclass(frozen=True)
class Field:
    """``kind``: a type, choices, or ``to:`` and the resources whose ids it takes."""

    kind: str | tuple[Any, ...]
    default: Any = None
    required: bool = False


def to(resource: str, required: bool = False) -> Field:
    return Field(f"to:{resource}", None, required)


def texts(*names: str) -> dict[str, Field]:
    return {name: Field(TEXT, "") for name in names}


def switches(*names: str) -> dict[str, Field]:
    return {name: Field(YES_NO, False) for name in names}


NAMED = {"name": Field(TEXT, required=True), "description": Field(TEXT, "")}
FIELDS: Mapping[str, Mapping[str, Field]] = {
    "organizations": {**NAMED, "max_hosts": Field(NUMBER, 0), "default_environment": to("execution_environments")},
    "instance_groups": {
        "name": Field(TEXT, required=True),
        "max_concurrent_jobs": Field(NUMBER, 0),
        "max_forks": Field(NUMBER, 0),
    },
    "execution_environments": {
        **NAMED,
        "image": Field(TEXT, required=True),
        "organization": to("organizations"),
        "credential": to("credentials"),
        "pull": Field(("", "always", "missing", "never"), ""),
    },
    "credential_types": {
        **NAMED,
        "kind": Field(("net", "cloud"), required=True),
        "inputs": Field(DOCUMENT, {}),
        "injectors": Field(DOCUMENT, {}),
    },
    "credentials": {
        **NAMED,
        "organization": to("organizations"),
        "credential_type": to("credential_types", required=True),
        "inputs": Field(DOCUMENT, {}),
    },
    "notification_templates": {
        **NAMED,
        "organization": to("organizations", required=True),
        "notification_type": Field(
            ("awssns", "email", "grafana", "irc", "mattermost", "pagerduty", "rocketchat", "slack", "twilio",
             "webhook"),
            required=True,
        ),
        "notification_configuration": Field(DOCUMENT, {}),
        "messages": Field(DOCUMENT, {"error": None, "started": None, "success": None, "workflow_approval": None}),
    },
    "projects": {
        **NAMED,
        **texts("scm_url", "scm_branch", "scm_refspec", "local_path"),
        **switches("scm_clean", "scm_delete_on_update", "scm_track_submodules", "scm_update_on_launch",
                   "allow_override"),
        "organization": to("organizations"),
        "scm_type": Field(("", "git", "svn", "insights", "archive"), ""),
        "credential": to("credentials"),
        "signature_validation_credential": to("credentials"),
        "default_environment": to("execution_environments"),
        "timeout": Field(NUMBER, 0),
        "scm_update_cache_timeout": Field(NUMBER, 0),
    },
    "inventories": {
        **NAMED,
        "organization": to("organizations", required=True),
        "kind": Field(("", "smart", "constructed"), ""),
        "host_filter": Field(TEXT),
        "variables": Field(VARIABLES, ""),
        "prevent_instance_group_fallback": Field(YES_NO, False),
    },
    "inventory_sources": {
        **NAMED,
        **texts("source_path", "source_vars", "enabled_var", "enabled_value", "host_filter", "scm_branch", "limit"),
        **switches("overwrite", "overwrite_vars", "update_on_launch"),
        "source": Field(("file", "constructed", "scm", "ec2", "gce", "azure_rm", "vmware", "satellite6", "openstack",
                         "rhv", "controller", "insights", "terraform", "openshift_virtualization")),
        "inventory": to("inventories", required=True),
        "source_project": to("projects"),
        "credential": to("credentials"),
        "execution_environment": to("execution_environments"),
        "timeout": Field(NUMBER, 0),
        "verbosity": Field((0, 1, 2), 1),
        "update_cache_timeout": Field(NUMBER, 0),
    },
    "job_templates": {
        **NAMED,
        **texts("playbook", "scm_branch", "limit", "job_tags", "skip_tags", "start_at_task", "host_config_key"),
        **switches("force_handlers", "use_fact_cache", "survey_enabled", "become_enabled", "diff_mode",
                   "allow_simultaneous", "prevent_instance_group_fallback",
                   *(f"ask_{name}_on_launch" for name in TEMPLATE_ASKS)),
        "job_type": Field(("run", "check"), "run"),
        "inventory": to("inventories"),
        "project": to("projects"),
        "execution_environment": to("execution_environments"),
        "forks": Field(NUMBER, 0),
        "timeout": Field(NUMBER, 0),
        "job_slice_count": Field(NUMBER, 1),
        "verbosity": Field((0, 1, 2, 3, 4, 5), 0),
        "extra_vars": Field(VARIABLES, ""),
        "webhook_service": Field(("", "github", "gitlab", "bitbucket_dc"), ""),
        "webhook_credential": to("credentials"),
    },
    "workflow_job_templates": {
        **NAMED,
        **switches("survey_enabled", "allow_simultaneous",
                   *(f"ask_{name}_on_launch" for name in WORKFLOW_ASKS)),
        **{name: Field(TEXT) for name in ("limit", "scm_branch", "job_tags", "skip_tags")},
        "organization": to("organizations"),
        "inventory": to("inventories"),
        "extra_vars": Field(VARIABLES, ""),
        "webhook_service": Field(("", "github", "gitlab", "bitbucket_dc"), ""),
        "webhook_credential": to("credentials"),
    },
    "workflow_job_template_nodes": {
        **{name: Field(TEXT) for name in ("limit", "scm_branch", "job_tags", "skip_tags")},
        **{name: Field(NUMBER) for name in ("forks", "timeout", "job_slice_count", "verbosity")},
        "identifier": Field(TEXT, required=True),
        "workflow_job_template": to("workflow_job_templates", required=True),
        "unified_job_template": to("unified_job_templates"),
        "inventory": to("inventories"),
        "execution_environment": to("execution_environments"),
        "extra_data": Field(DOCUMENT, {}),
        "job_type": Field((None, "", "run", "check")),
        "diff_mode": Field(YES_NO),
        "all_parents_must_converge": Field(YES_NO, False),
    },
    "workflow_approval_templates": {**NAMED, "timeout": Field(NUMBER, 0)},
    "schedules": {
        **NAMED,
        **{name: Field(TEXT) for name in ("limit", "scm_branch", "job_tags", "skip_tags")},
        **{name: Field(NUMBER) for name in ("forks", "timeout", "job_slice_count")},
        "rrule": Field(TEXT, required=True),
        "unified_job_template": to("unified_job_templates", required=True),
        "enabled": Field(YES_NO, True),
        "extra_data": Field(DOCUMENT, {}),
        "inventory": to("inventories"),
        "execution_environment": to("execution_environments"),
        "job_type": Field((None, "", "run", "check")),
        "diff_mode": Field(YES_NO),
        "verbosity": Field((None, 0, 1, 2, 3, 4, 5)),
    },
}  # fmt: skip
UNIFIED = ("projects", "inventory_sources", "job_templates", "workflow_job_templates", "workflow_approval_templates")
TYPES = {"inventories": "inventory"}
# Sent by the modules and not to be written: AWX goes on as if they were not there.
IGNORED = {
    "workflow_job_template_nodes": {"type"},
    "credential_types": {"managed"},
    "job_templates": {"organization"},
}
TOLD = {f"notification_templates_{when}": "notification_templates" for when in ("started", "success", "error")}
NODES = "workflow_job_template_nodes"
LISTS: Mapping[str, Mapping[str, str]] = {
    "job_templates": {**TOLD, "credentials": "credentials", "instance_groups": "instance_groups", "labels": "labels"},
    "workflow_job_templates": {**TOLD, "notification_templates_approvals": "notification_templates"},
    "projects": TOLD,
    "inventory_sources": TOLD,
    "inventories": {"instance_groups": "instance_groups"},
    NODES: dict.fromkeys(("success_nodes", "failure_nodes", "always_nodes"), NODES),
}
SURVEYED = ("job_templates", "workflow_job_templates")
# What goes with what is deleted: (resource, its field, whether it is deleted or only loses the reference).
FOLLOWS: Mapping[str, tuple[tuple[str, str, bool], ...]] = {
    "inventories": (("inventory_sources", "inventory", True), ("job_templates", "inventory", False)),
    "projects": (("job_templates", "project", False), ("inventory_sources", "source_project", False)),
    "execution_environments": (("job_templates", "execution_environment", False),),
    "job_templates": (("schedules", "unified_job_template", True), (NODES, "unified_job_template", False)),
    "workflow_job_templates": ((NODES, "workflow_job_template", True), ("schedules", "unified_job_template", True)),
}
Answer = tuple[int, Any]


class RefusedError(Exception):
    def __init__(self, status: int, body: Any) -> None:
        super().__init__(str(body))
        self.status, self.body = status, body


@dataclass
class Api:
    """``playbooks``: what a synchronization of any project finds; ``calls``: (method, path) of everything asked."""

    playbooks: tuple[str, ...] = ()
    objects: dict[str, dict[int, dict[str, Any]]] = field(default_factory=lambda: {name: {} for name in FIELDS})
    lists: dict[tuple[str, int, str], list[int]] = field(default_factory=dict)
    surveys: dict[int, dict[str, Any]] = field(default_factory=dict)
    calls: list[tuple[str, str]] = field(default_factory=list)
    revision: int = 0
    _last: int = 0

    def __post_init__(self) -> None:
        self.create("organizations", {"name": "Default"})

    # What a test does as somebody else.

    def create(self, resource: str, given: Mapping[str, Any]) -> dict[str, Any]:
        return self._show(resource, self._create(resource, given)["id"])

    def named(self, resource: str, name: str) -> dict[str, Any]:
        key = "identifier" if resource == NODES else "name"
        (found,) = [one for one in self.objects[resource].values() if one[key] == name]
        return found

    # The server.

    def answer(self, method: str, path: str, query: Mapping[str, str], body: Any, token: str) -> Answer:
        self.calls.append((method, path))
        try:
            if token != TOKEN:
                raise RefusedError(401, {"detail": "Authentication credentials were not provided."})
            if not path.startswith(PREFIX) or not path.endswith("/"):
                raise RefusedError(404, {"detail": "The requested resource could not be found."})
            return self._route(method, path[len(PREFIX) :].strip("/").split("/"), query, body)
        except RefusedError as refused:
            return refused.status, refused.body

    def _route(self, method: str, parts: list[str], query: Mapping[str, str], body: Any) -> Answer:
        resource = parts[0]
        if resource == "unified_job_templates" and len(parts) == 1 and method == "GET":
            return 200, self._page(
                [self._show(name, number) for name in UNIFIED for number in self.objects[name]], query
            )
        if resource not in FIELDS:
            raise RefusedError(404, {"detail": f"There is no {resource}"})
        if len(parts) == 1:
            if method == "GET":
                return 200, self._page([self._show(resource, number) for number in self.objects[resource]], query)
            if method == "POST":
                return 201, self.create(resource, body)
            raise RefusedError(405, {"detail": f"{method} is not allowed"})
        number = int(parts[1])
        if number not in self.objects[resource]:
            raise RefusedError(404, {"detail": "Not found."})
        if len(parts) == 2:
            if method == "PATCH":
                self._write(resource, body, self.objects[resource][number])
            elif method == "DELETE":
                self._delete(resource, number)
                return 204, None
            elif method != "GET":
                raise RefusedError(405, {"detail": f"{method} is not allowed"})
            return 200, self._show(resource, number)
        return self._below(method, (resource, number, parts[2]), query, body)

    def _below(self, method: str, place: tuple[str, int, str], query: Mapping[str, str], body: Any) -> Answer:
        resource, number, what = place
        if what == "survey_spec" and resource in SURVEYED:
            if method == "POST":
                check_survey(body)
                self.surveys[number] = body
            elif method == "DELETE":
                self.surveys.pop(number, None)
                return 200, None
            return 200, self.surveys.get(number, {})
        if what == "create_approval_template" and resource == NODES and method == "POST":
            made = self.create("workflow_approval_templates", body)
            self.objects[NODES][number]["unified_job_template"] = made["id"]
            return 201, made
        if what == "update" and resource == "projects" and method == "POST":
            self._synchronize(self.objects["projects"][number])
            return 202, {"url": f"{PREFIX}projects/{number}/", "id": number}
        target = LISTS.get(resource, {}).get(what)
        if target is None:
            raise RefusedError(404, {"detail": f"{resource} have no {what}"})
        listed = self.lists.setdefault(place, [])
        if method == "GET":
            return 200, self._page([self._show(target, one) for one in listed], query)
        if set(body) - {"id", "disassociate"} or body.get("id") not in self.objects.get(target, {}):
            raise RefusedError(400, {"detail": f"{what}: {body} names none"})
        if body.get("disassociate"):
            listed.remove(body["id"])
        elif body["id"] not in listed:
            listed.append(body["id"])
        return 204, None

    def _create(self, resource: str, given: Mapping[str, Any]) -> dict[str, Any]:
        fields = FIELDS[resource]
        missing = [name for name, one in fields.items() if one.required and given.get(name) in (None, "")]
        if missing:
            raise RefusedError(400, {name: ["This field is required."] for name in missing})
        self._last += 1
        made = {"id": self._last, **{name: one.default for name, one in fields.items()}}
        if resource == "projects":
            made.update(scm_revision="", playbook_files=())
        self._write(resource, given, made)
        self.objects[resource][made["id"]] = made
        if resource == "projects" and made["scm_type"]:
            self._synchronize(made)
        return made

    def _write(self, resource: str, given: Mapping[str, Any], into: dict[str, Any]) -> None:
        fields = FIELDS[resource]
        sent = {name: value for name, value in given.items() if name not in IGNORED.get(resource, ())}
        unknown = sorted(set(sent) - set(fields))
        if unknown:
            raise RefusedError(400, {name: ["This is no field of it."] for name in unknown})
        for name, value in sent.items():
            self._check(name, fields[name], value)
        wanted = {**into, **sent}
        self._check_whole(resource, wanted)
        into.update(json.loads(json.dumps(sent)))

    def _check(self, name: str, kind: Field, value: Any) -> None:
        if value is None:
            if kind.default is None and not kind.required:
                return
            raise RefusedError(400, {name: ["This field may not be null."]})
        if isinstance(kind.kind, tuple):
            if value not in kind.kind or isinstance(value, bool):
                raise RefusedError(400, {name: [f'"{value}" is not a valid choice.']})
        elif kind.kind.startswith("to:"):
            targets = UNIFIED if kind.kind == "to:unified_job_templates" else (kind.kind[3:],)
            if isinstance(value, bool) or not any(value in self.objects[target] for target in targets):
                raise RefusedError(400, {name: [f'Invalid pk "{value}" - object does not exist.']})
        elif kind.kind == VARIABLES:
            if not isinstance(value, str) or (value and not isinstance(json.loads(value), dict)):
                raise RefusedError(400, {name: ["Cannot parse as JSON."]})
        else:
            wanted = {YES_NO: bool, TEXT: str, NUMBER: int, DOCUMENT: dict}[kind.kind]
            if not isinstance(value, wanted) or (wanted is int and isinstance(value, bool)):
                raise RefusedError(400, {name: [f"Not a valid {kind.kind}."]})

    def _check_whole(self, resource: str, one: Mapping[str, Any]) -> None:
        scope = {
            "job_templates": ("name", "project"),
            "inventory_sources": ("name", "inventory"),
            "schedules": ("name", "unified_job_template"),
            NODES: ("identifier", "workflow_job_template"),
        }.get(resource, ("name", "organization"))
        for other in self.objects[resource].values():
            if other["id"] != one["id"] and all(other.get(name) == one.get(name) for name in scope):
                raise RefusedError(400, {"__all__": [f"{resource} with this {' and '.join(scope)} already exists."]})
        if resource == "job_templates":
            if one["project"] is None:
                raise RefusedError(400, {"project": ["This field is required."]})
            if one["playbook"] not in self.objects["projects"][one["project"]]["playbook_files"]:
                raise RefusedError(400, {"playbook": ["Playbook not found for project."]})
            if one["inventory"] is None and not one["ask_inventory_on_launch"]:
                raise RefusedError(400, {"inventory": ["You must set a default value or ask to prompt on launch."]})
            if one["job_slice_count"] < 0 or one["forks"] < 0:
                raise RefusedError(400, {"forks": ["Ensure this value is greater than or equal to 0."]})
        if resource == "inventory_sources" and one["source"] == "scm" and one["source_project"] is None:
            raise RefusedError(400, {"source_project": ["Project required for scm type sources."]})
        if resource == "schedules":
            self._check_schedule(one)

    def _check_schedule(self, one: Mapping[str, Any]) -> None:
        if not one["rrule"].startswith("DTSTART") or " RRULE:" not in one["rrule"] or "INTERVAL=" not in one["rrule"]:
            raise RefusedError(400, {"rrule": ["DTSTART, RRULE and INTERVAL are required."]})
        template = self.objects["job_templates"].get(one["unified_job_template"], {})
        for prompt in ("job_type", "diff_mode", "limit", "job_tags", "skip_tags"):
            asked = {"job_tags": "tags"}.get(prompt, prompt)
            if one[prompt] not in (None, "") and not template.get(f"ask_{asked}_on_launch"):
                raise RefusedError(400, {prompt: ["Field is not configured to prompt on launch."]})

    def _delete(self, resource: str, number: int) -> None:
        if resource == "credential_types" and any(
            credential["credential_type"] == number for credential in self.objects["credentials"].values()
        ):
            raise RefusedError(403, {"detail": "Credential types that are in use cannot be deleted."})
        for other, name, goes in FOLLOWS.get(resource, ()):
            for one in [one for one in self.objects[other].values() if one[name] == number]:
                if goes:
                    self._delete(other, one["id"])
                else:
                    one[name] = None
        gone = self.objects[resource].pop(number)
        self.surveys.pop(number, None)
        if resource == NODES:
            self.objects["workflow_approval_templates"].pop(gone["unified_job_template"], None)
        for (other, owner, _what), listed in list(self.lists.items()):
            if (other, owner) == (resource, number):
                del self.lists[other, owner, _what]
            elif number in listed:
                listed.remove(number)

    def _synchronize(self, project: dict[str, Any]) -> None:
        project.update(scm_revision=f"{self.revision:040x}", playbook_files=self.playbooks)

    # What comes out.

    def _show(self, resource: str, number: int) -> dict[str, Any]:
        one = dict(self.objects[resource][number])
        one.pop("playbook_files", None)
        url = f"{PREFIX}{resource}/{number}/"
        related = {name: f"{url}{name}/" for name in LISTS.get(resource, {})}
        if resource in SURVEYED:
            related["survey_spec"] = f"{url}survey_spec/"
        if resource == "projects":
            related["update"] = f"{url}update/"
            one.update(status="successful", finished="2026-01-01T00:00:00Z", failed=False)
        if resource == "credential_types":
            one.update(managed=False, namespace=None)
        if resource == "job_templates":
            one["organization"] = self.objects["projects"].get(one["project"], {}).get("organization")
        if resource == NODES and one["unified_job_template"] is not None:
            (target,) = [name for name in UNIFIED if one["unified_job_template"] in self.objects[name]]
            related["unified_job_template"] = f"{PREFIX}{target}/{one['unified_job_template']}/"
        summary = {}
        for name, kind in FIELDS[resource].items():
            if isinstance(kind.kind, str) and kind.kind.startswith("to:") and one[name] is not None:
                found = self._target(kind.kind[3:], one[name])
                summary[name] = {"id": one[name], "name": found["name"], "description": found.get("description", "")}
        kind_of = TYPES.get(resource, resource.removesuffix("s"))
        return {**one, "type": kind_of, "url": url, "related": related, "summary_fields": summary}

    def _target(self, resource: str, number: int) -> dict[str, Any]:
        names = UNIFIED if resource == "unified_job_templates" else (resource,)
        return next(self.objects[name][number] for name in names if number in self.objects[name])

    def _page(self, found: list[dict[str, Any]], query: Mapping[str, str]) -> dict[str, Any]:
        asked = {name: value for name, value in query.items() if name not in ("page", "page_size")}
        for name in asked:
            if found and not any(name.removeprefix("or__").split("__")[0] in one for one in found):
                raise RefusedError(400, {"detail": f"There is no field {name}"})
        every = [(name, value) for name, value in asked.items() if not name.startswith("or__")]
        some = [(name[4:], value) for name, value in asked.items() if name.startswith("or__")]
        kept = [
            one
            for one in found
            if all(matches(one, name, value) for name, value in every)
            and (not some or any(matches(one, name, value) for name, value in some))
        ]
        page = int(query.get("page", 1))
        following = None
        if len(kept) > page * PAGE:
            kind = kept[0]["url"].removeprefix(PREFIX).split("/")[0]
            following = f"{PREFIX}{kind}/?{urllib.parse.urlencode({**asked, 'page': page + 1})}"
        return {"count": len(kept), "next": following, "results": kept[(page - 1) * PAGE : page * PAGE]}


def matches(one: Mapping[str, Any], name: str, value: str) -> bool:
    """``name``, ``name__contains``, ``name__startswith`` and one relation: ``project__description__contains``."""
    words = name.split("__")
    how = words.pop() if words[-1] in ("contains", "startswith") else ""
    if len(words) == 2:
        one, words = one["summary_fields"].get(words[0], {}), words[1:]
        if not one:
            return False
    if words[0] not in one:
        return False
    text = str(one[words[0]])
    return {"contains": value in text, "startswith": text.startswith(value)}.get(how, text == value)


def check_survey(spec: Any) -> None:
    """As AWX checks it (api/views, ``_validate_spec_data``)."""

    def refuse(text: str) -> None:
        raise RefusedError(400, {"error": text})

    for name, kind in (("name", str), ("description", str), ("spec", list)):
        if not isinstance(spec.get(name), kind):
            refuse(f"Field '{name}' is missing from survey spec, or of another type.")
    if not spec["spec"]:
        refuse("'spec' doesn't contain any items.")
    seen = set()
    allowed = {"text": str, "textarea": str, "password": str, "multiplechoice": str, "multiselect": str,
               "integer": int, "float": (int, float)}  # fmt: skip
    for item in spec["spec"]:
        for name in ("type", "question_name", "variable", "required"):
            if not isinstance(item.get(name), bool if name == "required" else str):
                refuse(f"'{name}' missing from survey question, or of another type.")
        unknown = set(item) - {"type", "question_name", "question_description", "variable", "required", "default",
                               "choices", "min", "max", "new_question"}  # fmt: skip
        if unknown or item["variable"] in seen or item["type"] not in allowed:
            refuse(f"Survey question {item['variable']}: {unknown or 'given twice, or of no type'}")
        seen.add(item["variable"])
        if item.get("default", "") != "" and not isinstance(item["default"], allowed[item["type"]]):
            refuse(f"Default value {item['default']!r} expected to be {item['type']}.")
        if item["type"] in ("multiplechoice", "multiselect"):
            choices = item.get("choices", "").splitlines()
            if not choices or any(line not in choices for line in item.get("default", "").splitlines()):
                refuse("Default choice must be answered from the choices listed.")


@contextlib.contextmanager
def serve(api: Api) -> Iterator[str]:
    """The address of a server on this computer's loopback."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def _answer(self) -> None:
            url = urllib.parse.urlsplit(self.path)
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else {}
            token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
            with lock:
                status, found = api.answer(self.command, url.path, dict(urllib.parse.parse_qsl(url.query)), body, token)
            text = b"" if found is None else json.dumps(found).encode()
            self.send_response(status)
            self.send_header("X-API-Product-Name", "AWX")
            self.send_header("X-API-Product-Version", "24.6.1")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = do_PATCH = do_DELETE = _answer

        def log_message(self, *_args: Any) -> None:
            pass

    lock = threading.Lock()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
