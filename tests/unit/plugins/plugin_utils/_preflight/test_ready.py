# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import re

from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._preflight import checks as pf
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._preflight import ready
from fabric_inputs import rdma, wired
from preflight_inputs import ALL, context, inventory, nodes

RECIPE = "qwen3-235b-a22b-gptq-int4"
CACHE = "/opt/sparkmatrix/models/huggingface/hub/models--Qwen--Qwen3-235B-A22B-GPTQ-Int4"

PARTIAL = "/opt/sparkmatrix/models/huggingface/sparkmatrix/partial"


def said(layers=ALL, count=4, change=lambda found: None, recipe=RECIPE, **rest):
    found = nodes(count)
    change(found)
    hosts = inventory(count, **({"engine_recipe": recipe} if recipe else {}))
    return ready.sentence(context(layers, hosts, nodes=found, **rest))


def test_a_first_run_says_how_long_it_takes_and_what_it_downloads():
    def pristine(found):
        for node in found.values():
            node["environments"] = {}

    assert said(change=pristine) == (
        "Ready: 4 machines, switch at 200 Gb/s, about 22 minutes plus 125 GB to download once"
        " (a Python environment is made on all 4 sparks; times are estimates)"
    )


def test_what_is_there_is_not_counted():
    def there(found, *hosts):
        for host in hosts:
            found[host]["paths"][CACHE] = {"exists": True}

    everywhere = said(change=lambda found: there(found, *found))
    assert "download" not in everywhere and "about 12 minutes (Qwen/Qwen3-235B-A22B-GPTQ-Int4 is taken" in everywhere
    some = said(change=lambda found: there(found, "spark1", "spark2"))
    assert "plus 125 GB to copy to spark3, spark4 (" in some
    some = said({"engine"}, change=lambda found: there(found, "spark1", "spark2"))
    assert "125 GB to download on spark3, spark4 (" in some
    assert "125 GB to download on each node" in said({"engine"})
    runs = said(change=lambda found: found["spark1"].update(engine_units=["sparkmatrix-engine.service"]))
    assert "up to 12 minutes" in runs and "(less where the engine need not start again;" in runs


def test_the_node_is_asked_for_the_model_in_its_cache():
    made = context(ALL, inventory(4, engine_recipe=RECIPE))
    assert {CACHE, PARTIAL} < set(pf.request(made)["paths"])
    assert CACHE not in pf.request(context({"fabric"}, inventory(4, engine_recipe=RECIPE)))["paths"]
    local = inventory(4, engine_recipe=RECIPE, engine_model_path="/models/mine")
    assert ready.paths(context(ALL, local)) == set()


def test_a_pinned_model_is_there_with_its_revision_only():
    made = context(ALL, inventory(1, engine_recipe="gpt-oss-120b"))
    (snapshot,) = (path for path in ready.paths(made) if "models--openai--gpt-oss-120b" in path)
    assert re.fullmatch(r".*/hub/models--openai--gpt-oss-120b/snapshots/[0-9a-f]{40}", snapshot)

    def older(found):
        found["spark1"]["paths"][snapshot.partition("/snapshots/")[0]] = {"exists": True}

    def there(found):
        found["spark1"]["paths"][snapshot] = {"exists": True}

    assert "65 GB to download" in said(count=1, change=older, recipe="gpt-oss-120b")
    assert "download" not in said(count=1, change=there, recipe="gpt-oss-120b")


def test_without_an_engine_it_is_about_machines_and_cables():
    assert said({"fabric"}) == said(recipe=None) == "Ready: 4 machines, switch at 200 Gb/s"
    assert said({"fabric"}, earlier={}) == "Ready: 4 machines, cables not looked at yet"
    assert said({"fabric"}, count=1) == "Ready: 1 machine"
    assert said({"engine"}, earlier={}, recipe=None) == "Ready: 4 machines"


def test_the_cables_as_they_were_heard_now():
    heard = wired("spark1.0 spark2.0")

    def listened(found):
        for host in found:
            found[host]["rdma"] = rdma(heard[host].cages)

    neighbors = {host: node_input.neighbors for host, node_input in heard.items()}
    assert said({"fabric"}, 2, listened, earlier={}, neighbors=neighbors) == "Ready: 2 machines, direct at 200 Gb/s"


def test_several_services_and_containers():
    services = [
        {"name": "chat", "recipe": "gpt-oss-120b", "nodes": ["spark1"]},
        {"name": "code", "recipe": "qwen3-8b", "nodes": ["spark2"], "port": 8001},
    ]
    hosts = inventory(2, engine_recipe=RECIPE, engine_services=services, engine_runtime="container")
    text = ready.sentence(context(ALL, hosts, nodes=nodes(2)))
    assert "to download once" in text
    assert "time for pulling container images comes on top" in text and "Python environment" not in text


def short(**paths):
    found = nodes(2)
    found["spark2"]["paths"].update(
        {path: {"exists": False, "free": 10 * ready.GB, **more} for path, more in paths.items()}
    )
    return [
        str(finding)
        for finding in ready.check_model_disk(context(ALL, inventory(2, engine_recipe=RECIPE), nodes=found))
    ]


def test_a_model_that_does_not_fit_on_a_disk_is_refused_before_it_is_fetched():
    (finding,) = short(**{CACHE: {}, PARTIAL: {}})
    assert finding.startswith(
        "spark2 /opt/sparkmatrix/models/huggingface: Qwen/Qwen3-235B-A22B-GPTQ-Int4: 125.0 GB to download, 10.0 GB"
        " free, 115.0 GB short"
    )
    assert short(**{CACHE: {"free": 126 * ready.GB}}) == []
    # What is there has its space; what has begun is compared by the byte.
    assert short(**{CACHE: {"exists": True}}) == short(**{CACHE: {}, PARTIAL: {"exists": True}}) == []


def test_models_by_name_are_fetched_too_and_loaded_later():
    other = "/opt/sparkmatrix/models/huggingface/hub/models--Qwen--Qwen3-8B/snapshots/"
    hosts = inventory(2, engine_recipe=RECIPE, engine_models=["qwen3-8b", {"recipe": "none-of-them"}])
    found = nodes(2)
    (place,) = (path for path in ready.paths(context(ALL, hosts)) if path.startswith(other))
    for path in (CACHE, place):
        found["spark2"]["paths"][path] = {"exists": False, "free": 130 * ready.GB}
    (finding,) = ready.check_model_disk(context(ALL, hosts, nodes=found))
    assert "Qwen/Qwen3-8B: 141" in finding.found and "11" in finding.found
    alone = ready.sentence(context(ALL, inventory(2, engine_recipe=RECIPE), nodes=nodes(2)))
    both = ready.sentence(context(ALL, hosts, nodes=nodes(2)))
    assert both.replace("141 GB", "125 GB") == alone != both


KEPT = "/var/lib/sparkmatrix/prefixes/sparkmatrix-engine"
TB = 1000 * ready.GB


def room(kept, cache, gb=200, **variables):
    found = nodes(2)
    for path, disk in {KEPT: kept, CACHE: cache}.items():
        found["spark2"]["paths"][path] = {"exists": False, "total": TB, **disk}
    hosts = inventory(2, engine_recipe=RECIPE, engine_prefix_cache_gb=gb, **variables)
    return [str(finding) for finding in ready.check_prefix_disk(context(ALL, hosts, nodes=found))]


def test_what_is_kept_of_prompts_has_room_beside_models_and_a_twentieth_of_the_disk():
    disk = {"free": 370 * ready.GB}
    assert room(disk, disk) == [
        f"spark2 {KEPT}: computed prompts may take 200 GB; 370 GB are free, of which 50 GB stay free and 125 GB are for"
        " models to download: there is room for 195 GB."
    ]
    assert room(disk, disk, gb=195) == room(disk, disk, gb=0) == []
    assert room(disk, {"free": 130 * ready.GB}) == [], "models on another disk"
    assert room(disk, {**disk, "exists": True}) == [], "the model is there"
    assert room({**disk, "exists": True}, disk) == [], "what is kept is below its limit by itself"
    assert room({"free": None}, disk) == [] and "room for 0 GB" in room({"free": 10 * ready.GB}, disk)[0]


def test_several_services_on_a_disk_have_room_together():
    both = [{"name": "chat", "recipe": "qwen3-8b"}, {"name": "code", "recipe": "qwen3-8b", "port": 8001}]
    both = [{**one, "nodes": ["spark2"], "memory_share": 0.5, "prefix_cache_gb": 100} for one in both]
    hosts = inventory(2, engine_recipe=RECIPE, engine_services=both)
    made = context(ALL, hosts)
    (first, second) = sorted(path for path in ready.paths(made) if "/prefixes/" in path)
    assert (first, second) == (f"{KEPT}-chat", f"{KEPT}-code") and {first, second} <= set(pf.request(made)["paths"])
    found = nodes(2)
    for path in (first, second):
        found["spark2"]["paths"][path] = {"exists": False, "total": TB, "free": 240 * ready.GB}
    (finding,) = ready.check_prefix_disk(context(ALL, hosts, nodes=found))
    assert "may take 200 GB" in finding.found and "room for 190 GB" in finding.found
