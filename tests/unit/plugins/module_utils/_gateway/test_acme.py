# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What is refused before an authority is asked, and what is said when it refuses."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._gateway import acme as a

ACME = a.Acme(agree_tos=True)
NAMES = ("api.example.org",)
TAKEN = {8443: "gateway_port"}


@pytest.mark.parametrize(
    ("changes", "names", "says"),
    [
        ({}, (), "gateway_tls_names is empty"),
        (
            {},
            ("*.example.org",),
            "gateway_tls_names has '*.example.org', for which the challenge HTTP-01 does not work",
        ),
        ({}, ("192.0.2.1",), "gateway_tls_names has '192.0.2.1'"),
        ({}, ("Api.example.org",), "gateway_tls_names has 'Api.example.org'"),
        ({"agree_tos": False}, NAMES, "gateway_acme_agree_tos is false. Read the terms"),
        ({"directory": "http://ca.lab/acme"}, NAMES, "gateway_acme_directory is 'http://ca.lab/acme'"),
        ({"directory": "https://ca.lab/a b"}, NAMES, "gateway_acme_directory is"),
        ({"email": "me@example.org --force"}, NAMES, "gateway_acme_email is"),
        ({"ca_certificate": "ca.pem"}, NAMES, "gateway_acme_ca_certificate is 'ca.pem'"),
        ({"port": 0}, NAMES, "gateway_acme_port is 0, expected 1 to 65535"),
        ({"port": 8443}, NAMES, "gateway_acme_port is 8443, which gateway_port is, too"),
        ({"allow_from": ("x",)}, NAMES, "gateway_acme_allow_from has 'x'"),
    ],
)
def test_what_cannot_work_is_refused(changes: dict[str, Any], names: tuple[str, ...], says: str) -> None:
    found = a.problems(dataclasses.replace(ACME, **changes), names, TAKEN)
    assert len(found) == 1 and says in found[0]


def test_what_can_work_is_not() -> None:
    full = a.Acme("https://ca.lab:9000/acme/acme/directory", "ops@lab.org", True, 8080, "/etc/ca.pem", ("10.0.0.0/8",))
    assert a.problems(full, ("door", "api.example.org"), TAKEN) == []


@pytest.mark.parametrize(
    ("addresses", "own", "refused", "warned"),
    [
        (["10.0.0.1"], ["10.0.0.1"], "", ""),
        ([], ["10.0.0.1"], "does not resolve. Make a DNS record for it: 10.0.0.1", ""),
        (["10.0.0.9"], ["10.0.0.1"], "leads to 10.0.0.9, and the door is at 10.0.0.1", ""),
        (["8.8.8.8"], ["10.0.0.1"], "", "port 80 there has to be forwarded to port 8080 of 10.0.0.1"),
        (["8.8.8.8"], ["9.9.9.9"], "leads to 8.8.8.8, and the door is at 9.9.9.9", ""),
        (["10.0.0.1", "2001:db8::1"], ["10.0.0.1"], "", "leads to 2001:db8::1 as well"),
        (["127.0.1.1"], ["10.0.0.1"], "", ""),
        (["127.0.1.1", "10.0.0.1"], ["10.0.0.1"], "", ""),
    ],
)
def test_where_a_name_has_to_lead(addresses: list[str], own: list[str], refused: str, warned: str) -> None:
    found, said = a.judge_names({"n": addresses}, own, 8080)
    assert bool(found) == bool(refused) and refused in "".join(found)
    assert bool(said) == bool(warned) and warned in "".join(said)


@pytest.mark.parametrize(
    ("addresses", "own", "expected"),
    [
        (["10.0.0.1"], ["10.0.0.1", "10.1.0.1"], "10.0.0.1"),
        (["8.8.8.8"], ["10.0.0.1"], "10.0.0.1"),
        (["8.8.8.8"], ["10.0.0.1", "10.1.0.1"], ""),
        (["10.0.0.1", "10.1.0.1"], ["10.0.0.1", "10.1.0.1"], ""),
    ],
)
def test_where_the_challenge_is_answered(addresses: list[str], own: list[str], expected: str) -> None:
    assert a.challenge_address({"n": addresses}, own) == expected


def test_the_units() -> None:
    units = a.units(dataclasses.replace(ACME, ca_certificate="/etc/ca.pem", email="ops@x.org"), NAMES, "10.0.0.1")
    service = units[a.SERVICE]
    assert "--http-01-address 10.0.0.1" in service and "--email ops@x.org" in service and "=/etc/ca.pem" in service
    assert f"--config-dir {a.PLACE}/" in service and "/etc/letsencrypt" not in service
    assert "--domains api.example.org\n" in service and "WantedBy=timers.target" in units[a.TIMER]
    bare = a.units(ACME, NAMES, "")[a.SERVICE]
    assert "--http-01-address" not in bare and "REQUESTS_CA" not in bare and "--register-unsafely-without-email" in bare
    assert ACME.place != dataclasses.replace(ACME, directory="https://ca.lab/d").place


CONNECTION = """Saving debug log to /x/letsencrypt.log
Requesting a certificate for door.lab.test

Certbot failed to authenticate some domains. The Certificate Authority reported these problems:
  Domain: door.lab.test
  Type:   connection
  Detail: connection refused

Hint: The Certificate Authority failed to download the challenge files.

Some challenges have failed.
Ask for help or search for solutions at https://community.letsencrypt.org. See the logfile for more details.
"""


@pytest.mark.parametrize(
    ("text", "says", "next_step"),
    [
        (CONNECTION, "door.lab.test: connection refused (connection)", "come in at port 80 of this machine"),
        ("An unexpected error occurred:\nX [SSL: CERTIFICATE_VERIFY_FAILED]", "X [SSL", "gateway_acme_ca_certificate"),
        ("An unexpected error occurred:\nConnectionError: refused", "refused", "Look whether the head reaches"),
        ("urn:ietf:params:acme:error:rateLimited :: wait", ":: wait", "staging"),
        ("Could not bind TCP port 80 because it is already in use", "already in use", "another gateway_acme_port"),
        ("", "it printed nothing", "journalctl -u sparkmatrix-gateway-acme.service"),
    ],
)
def test_what_is_said_of_a_refusal(text: str, says: str, next_step: str) -> None:
    assert says in a.complaint(text) and next_step in a.remedy(text, ACME)
