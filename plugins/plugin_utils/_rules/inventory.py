# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Rules about the inventory alone: no machine is contacted."""

from __future__ import annotations

from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._rules.rule import (
    ANY,
    FABRIC,
    SERVING,
    WARN,
    WHOLE,
    Rule,
)

CHECKS = (
    Rule(
        "severity",
        "`preflight_severity` names a check that does not exist, or gives it a severity that it cannot have",
        "A misspelled name would change nothing, silently",
        layers=ANY,
        fixed="nobody would learn of the mistake",
    ),
    Rule(
        "names",
        "An inventory name is no valid host name",
        "Other nodes know the machine by this name",
        "Use letters, digits and '-' (RFC 1123); the address belongs in ansible_host",
        layers=ANY,
    ),
    Rule(
        "ranks",
        "`spark_rank` is missing, no number or given twice, or no machine has 0",
        "Addresses follow from it, and 0 is the head",
        layers=ANY,
        fixed="every address follows from the rank",
    ),
    Rule(
        "rank_gaps",
        "Ranks between 0 and the highest are not used",
        "A removed machine leaves a gap; so does a typing mistake, which would give a machine another address",
        "Right after removing a machine, whose rank stays free; else correct spark_rank",
        severity=WARN,
        layers=ANY,
    ),
    Rule(
        "addresses",
        "Two machines have one management address",
        "One machine would be configured twice, as two",
        "Give each machine its own address",
        layers=ANY,
        fixed="one machine would be changed under two names at once",
    ),
    Rule(
        "renamed_variables",
        "A variable of an earlier release is gone",
        "The run would do something else than the inventory asks for",
        layers=ANY,
        fixed="the run would do something else than the inventory asks for",
    ),
    Rule(
        "unknown_variables",
        "A variable with one of our prefixes does not exist, or a name is one letter away from one that does",
        "A misspelled variable changes nothing, silently",
        layers=ANY,
    ),
    Rule(
        "types",
        "A value has the wrong type, or its template fails",
        "A role would stop half way, or take the value for something else",
        layers=ANY,
        fixed="a role would stop half way",
    ),
    Rule(
        "fabric_plan",
        "Topology, subnets, MTU or transport of the fabric cannot work on any machines",
        "Otherwise a run would refuse it only after it has changed machines",
        layers=FABRIC,
        fixed="the plan of the run refuses it, too",
    ),
    Rule(
        "engine_plan",
        "The recipe, an option or a size cannot be served on that many Sparks",
        "Otherwise a run would refuse it only after it has changed machines",
        layers=SERVING | {"gateway", "verify"},
        fixed="the plan of the run refuses it, too",
    ),
    Rule(
        "keeper",
        "A time limit or a number of the keeper is outside its range",
        "The keeper would restart what works, or leave alone what does not",
        layers=frozenset({"engine"}),
        fixed="the layer engine refuses it",
    ),
    Rule(
        "gateway",
        "The settings of the gateway contradict each other or would open what is not for clients",
        "The layer gateway would refuse them after everything else has run",
        layers=frozenset({"gateway"}),
        fixed="the layer gateway refuses them",
    ),
    Rule(
        "web_ui",
        "The chat page is asked for without a gateway, its port is taken by another layer, or its settings"
        " contradict each other",
        "The layer web_ui would refuse them after everything else has run",
        layers=frozenset({"web_ui"}),
        fixed="the layer web_ui refuses them",
    ),
    Rule(
        "port_filter",
        "`spark_port_filter_from` has an entry that is no address and no network",
        "The layers would refuse it after everything else has run",
        "Write it like 192.168.1.5, or 192.168.1.0/24",
        layers=SERVING,
        fixed="the layers refuse it",
    ),
    Rule(
        "hub_token",
        "The file with the Hugging Face token is not on this computer, or every user can read it",
        "The download would be refused without a reason, or other users of this computer have the token",
        layers=frozenset({"artifacts"}),
    ),
    Rule(
        "model_sources",
        "A directory on this controller that `artifacts_sources` names is not there",
        "The run would end when the model is to be sent, after the layers before it",
        "Write it like controller:~/models/name; without controller: it is on the machine that fetches",
        severity=WARN,
        layers=frozenset({"artifacts"}),
    ),
    Rule(
        "limit",
        "`--limit` leaves machines out",
        "A plan for some machines breaks the others",
        "Run without --limit; to use fewer machines for good, take the others out of the group 'sparks'",
        layers=WHOLE,
        fixed="a plan for some machines breaks the others",
    ),
)
