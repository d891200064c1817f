# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Rules about what serves."""

from __future__ import annotations

from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._rules.rule import (
    NODE,
    SERVICE,
    WARN,
    Alert,
    Rule,
    drifted,
)

ANSWERS = (
    Rule(
        "not_serving",
        "A service does not answer, or no keeper watches it",
        "Requests fail now, or will after the next fault",
        "On the head: sudo sparkmatrix status. It says what the service waits for, and what to do",
        "ansible-playbook site.yml, which repairs what it finds; on the head sudo journalctl -u <unit> shows what"
        " the engine itself says",
        "docs/operations.md",
        alerts=(
            Alert("sparkmatrix_keeper_running == 0", f"{NODE} {SERVICE}", sign="keeper_stopped"),
            Alert('sparkmatrix_keeper_phase{phase="gave_up"} == 1', f"{NODE} {SERVICE}", "0s", "keeper_gave_up"),
            Alert(
                "sparkmatrix_keeper_silent_seconds > 60",
                f"{NODE} {SERVICE}: the keeper gives no sign of life",
                sign="keeper_silent",
            ),
            Alert(
                'sparkmatrix_keeper_phase{phase="serving"} == 0 and on (node, service) sparkmatrix_keeper_running == 1',
                f"{NODE} {SERVICE}: it loads, waits or is started anew",
                "30m",
                "starting",
            ),
            Alert(
                'sparkmatrix_probe_answered == 0 and on (node, service) sparkmatrix_keeper_phase{phase="serving"} == 1',
                f"{NODE} {SERVICE}: it gives no token",
                "5m",
                "probe",
            ),
            Alert(
                "sparkmatrix_keeper_failures >= 3", f"{NODE} {SERVICE}: three failures in a row", "0s", "restarts", WARN
            ),
        ),
    ),
    Rule(
        "ray_incomplete",
        "Nodes are missing in Ray",
        "A model that runs on them cannot be started again once a rank fails",
        "ansible-playbook site.yml --tags ray",
        "On the node that is missing: sudo journalctl -u sparkmatrix-ray; can it ping the head's address on the"
        " fabric?",
        "docs/engine.md",
    ),
    Rule(
        "gateway_silent",
        "The gateway does not answer",
        "Users on other computers get errors, though the engine itself answers",
        "ansible-playbook site.yml --tags gateway; on the head sudo journalctl -u sparkmatrix-gateway names the fault",
        "On the head: sudo sparkmatrix status shows address, certificate and whether it answers",
        "docs/gateway.md",
        alerts=(Alert("sparkmatrix_gateway_answers == 0 or sparkmatrix_gateway_relay_answers == 0", NODE),),
    ),
    Rule(
        "smoke_failed",
        "The service fails at a kind of request that its model can answer",
        "Clients that send such requests get errors, though plain questions are answered. The engine was started"
        " without the parser or template that they need, or with one that does not fit the model",
        "Compare your engine_options with the recipe: tool-call-parser, reasoning-parser, the chat template; then"
        " run playbooks/upgrade.yml",
        "On the head: sudo journalctl -u <unit> has the error of this request",
        "docs/recipes.md",
    ),
    Rule(
        "numbers_differ",
        "The model computes something else than when it was last good",
        "The same weights with the same settings gave other log probabilities, by more than kernels, batches and tensor"
        " parallelism change them. Weights differ on a node, a kernel of the new version is wrong, or memory or a cable"
        " changes numbers",
        "Serve what was good: run playbooks/rollback.yml. Then compare the model on all nodes: ansible-playbook"
        " site.yml --tags artifacts. Where you replaced weights in their directory yourself: on the head, sudo rm"
        " /var/lib/sparkmatrix/keeper/golden.json, and the keeper keeps a new answer",
        "Serve with the same options on the version before: if the numbers are right there, the new version is wrong,"
        " else a machine is: run playbooks/doctor.yml",
        "docs/golden.md",
    ),
    Rule(
        "template_differs",
        "Questions are put together in another way than when it was last good",
        "Plain texts are computed as before, and a question in a chat is not: the chat template is another one. The"
        " model answers worse, or does not end, without any error",
        "Compare the version of the engine, and the chat template in the model's directory or in the file that you"
        " named, with what served before; that comes back with playbooks/rollback.yml",
        "Ask both versions how they put a question together (vLLM: POST /tokenize with its messages)",
        "docs/golden.md",
    ),
    Rule(
        "memory_grows",
        "A machine loses memory all the time while the service runs",
        "It will be full in hours or days; the memory watchdog then stops the service in the middle of its work",
        "Serve what served before: run playbooks/rollback.yml. Where something else grows on that machine, stop it:"
        " ps aux --sort=-rss",
        "Tell those who make the engine, with its version and options; until then restart it every night:"
        " ansible-playbook playbooks/restart.yml",
        "docs/golden.md",
    ),
    Rule(
        "requests_failed",
        "Requests got no answer under load",
        "The engine refused requests, broke off or died while it had several: its queue or its memory was too"
        " small, or a rank was lost",
        "Look at what it said (on the head: sudo journalctl -u <unit>); lower engine_concurrency or engine_context,"
        " and run playbooks/upgrade.yml",
        "sudo sparkmatrix status on the head says why it was restarted. Measure one request at a time, to see"
        " whether load is the reason: ansible-playbook playbooks/benchmark.yml --tags serving -e"
        " '{\"benchmark_concurrency\": [1]}'",
        "roles/benchmark/README.md",
    ),
    Rule(
        "key_not_checked",
        "The service accepts a wrong key",
        "Whoever reaches the port can use the model. The engine was started without its key, or before the key was"
        " there",
        "Restart the service, so that it reads its key: ansible-playbook playbooks/restart.yml",
        "ansible-playbook site.yml --tags engine writes key and unit again",
        "docs/security.md",
    ),
    Rule(
        "port_filter_off",
        "The port filter is not active",
        "Strangers in the network may reach what Ray and the ranks listen on",
        "sudo systemctl reload nftables, or run the layer that places it: ansible-playbook site.yml --tags fabric",
        "Find out what removed the tables: other firewall programs do when they start",
        "docs/security.md",
        alerts=(drifted("port_filter_off"),),
    ),
)

SPEED = (
    Rule(
        "below_expectation",
        "The service is slower than its model should be",
        "What a step reads, computes and exchanges is known, so its time is known within about a quarter, where"
        " somebody has published a run of the same within less. If it takes longer, the GPU is slowed down, ranks talk"
        " over TCP, or an option keeps the engine from its fast kernels (eager mode)",
        "Measure what is below the engine: run playbooks/stop.yml, then run playbooks/benchmark.yml --tags"
        " fabric,nccl and run playbooks/start.yml. For faults of the machines themselves run playbooks/doctor.yml",
        "Compare the engine's options with those of the published run (docs/recipes.md); for a model that nobody"
        " has measured on so many machines, the band is an estimate",
        "docs/performance.md",
        severity=WARN,
        alerts=(
            Alert(
                "histogram_quantile(0.95, sum by (le, service)"
                ' (rate({__name__=~"(vllm|sglang):time_to_first_token_seconds_bucket"}[15m]))) > 120',
                f"{SERVICE}: one request in twenty waits for two minutes",
                "15m",
            ),
        ),
    ),
    Rule(
        "regression",
        "The service is slower than it was",
        "It is slower than the slowest repetition of the last runs, so this is more than chance. Updates of driver,"
        " firmware or image, another option, heat or a lost half cause it",
        "Undo, one by one, the changes that the evidence lists; for the engine run playbooks/rollback.yml",
        "Run playbooks/doctor.yml, and reboot all machines",
        "roles/benchmark/README.md",
    ),
    Rule(
        "speculation_rejected",
        "Most drafted tokens are thrown away",
        "A draft costs time, and pays only where the model agrees with it. A draft for another model or version, or"
        " for another kind of text, is wrong most of the time",
        "Use the draft that belongs to this model and revision (recipe, draft), or fewer tokens per draft",
        "Serve without a draft, and compare the two runs",
        "docs.vllm.ai, Speculative Decoding, 2026-11",
        severity=WARN,
    ),
)
