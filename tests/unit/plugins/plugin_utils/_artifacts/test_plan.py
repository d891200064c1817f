# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import jinja2
import pytest
import yaml
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts import manifest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts.inputs import Model
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.fact import Rail
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._artifacts import plan
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._artifacts.planners import PLANNERS
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._base import planner
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.plan import assumed_facts
from engine_plans import node_plans

ROOT = Path(__file__).resolve().parents[5]
NAME = "Qwen/Qwen3-8B"
HOME = "/opt/sparkmatrix/models/huggingface"
COMMIT, OTHER = "a" * 40, "b" * 40
DIGEST = "d" * 64
GB = plan.GB


def held(state="none", revision=COMMIT, digest=DIGEST, size=16 * GB, there=0):
    known = {"revision": revision, "digest": digest if state in {"whole", "broken"} else "", "size": size}
    known = known if state != "none" else {"revision": "", "digest": "", "size": 0}
    return {"name": NAME, "ref": "", "state": state, "there": size if state == "whole" else there, "found": "", **known}


def seen(state="none", **known):
    where = {"none": "download", "broken": "download"}.get(state, "cache")
    signature = "0a1b" if where == "cache" else ""
    one = {"name": NAME, "ref": "", "where": where, "signature": signature, "problem": "", "remedy": ""}
    return [{**one, "held": held(state), **known}]


def wanted(*states, seed="", sources=None, environment=None, only="", here=(), **settings):
    plans = {
        host: replace(
            node_plan,
            models=tuple(replace(m, revision="") for m in node_plan.here[0].models),
            model_cache=node_plan.here[0].model_cache,
        )
        for host, node_plan in node_plans(len(states), **settings).items()
    }
    if environment is not None:
        plans = {
            host: replace(
                one, models=tuple(replace(m, environment={**m.environment, **environment}) for m in one.models)
            )
            if only in ("", host)
            else one
            for host, one in plans.items()
        }
    told = {host: seen(state) if isinstance(state, str) else state for host, state in zip(plans, states)}
    told = {host: [document.load(Model, model) for model in models] for host, models in told.items()}
    return plan.wanted(plans, told, seed, sources, here)


def test_where_everything_is_whole_there_is_nothing_to_do():
    made = wanted("whole", "whole")
    assert (made.bring, made.findings) == ((), ())
    assert made.lines == (f"{NAME}: whole on all 2 nodes that serve it, revision {COMMIT[:12]}",)


def test_what_the_engines_have_fetched_themselves_stays_as_it_is():
    made = wanted("foreign", "foreign")
    assert not made.bring
    assert "in the cache of all 2 nodes that serve it already, fetched by the engines themselves" in made.lines[0]


@pytest.mark.parametrize(
    ("states", "seed", "obtain"),
    [
        (("none", "none"), "spark1", "download"),
        (("none", "whole"), "spark2", ""),
        (("none", "foreign"), "spark2", "adopt"),
        (("foreign", "whole"), "spark2", ""),
        (("broken", "whole"), "spark2", ""),
        (("broken", "none"), "spark1", "download"),
        (("none",), "spark1", "download"),
    ],
)
def test_a_node_that_has_it_is_asked_before_the_hub(states, seed, obtain):
    (made,) = wanted(*states).bring
    assert (made.seed, made.obtain, made.name, made.home) == (seed, obtain, NAME, HOME)
    assert made.hosts == tuple(f"spark{number + 1}" for number in range(len(states)))
    assert made.revision == (COMMIT if obtain != "download" else "")


def test_two_nodes_with_different_revisions_get_the_same():
    (made,) = wanted("whole", seen("whole", held=held("whole", OTHER, "e" * 64))).bring
    assert (made.seed, made.revision) == ("spark1", COMMIT)
    other = seen("foreign", signature="ffff")
    (made,) = wanted("foreign", other).bring
    assert (made.seed, made.obtain) == ("spark1", "adopt")


def test_the_user_names_who_fetches_and_from_where():
    (made,) = wanted("none", "none", seed="spark2").bring
    assert (made.seed, made.obtain) == ("spark2", "download")
    (made,) = wanted("none", "none", sources={NAME: "/mnt/usb/x"}).bring
    assert (made.seed, made.obtain, made.source) == ("spark1", "import", "/mnt/usb/x")
    (made,) = wanted("none", "foreign", sources={NAME: "/mnt/usb/x"}).bring
    assert (made.seed, made.obtain) == ("spark1", "import")  # where the disk is
    (made,) = wanted("none", "whole", seed="spark1").bring
    assert (made.seed, made.obtain) == ("spark2", "")  # nothing has to be fetched
    (finding,) = wanted("none", "none", seed="spark9").findings
    assert "spark9 does not serve Qwen/Qwen3-8B" in str(finding)


def test_a_source_on_the_controller_is_sent_unless_it_is_there_already():
    sources = {NAME: "controller:/home/me/x"}
    (made,) = wanted("none", "none", sources=sources, environment={"HF_HUB_OFFLINE": "1"}).bring
    assert (made.seed, made.obtain, made.source) == ("spark1", "send", "/home/me/x")
    (made,) = wanted("none", "none", sources=sources, seed="spark2", here=["spark1"]).bring
    assert (made.seed, made.obtain) == ("spark2", "send")
    (made,) = wanted("none", "none", sources=sources, here=["spark1"]).bring
    assert (made.seed, made.obtain, made.source) == ("spark1", "import", "/home/me/x")
    (made,) = wanted("none", "whole", sources=sources).bring
    assert (made.seed, made.obtain) == ("spark2", "")
    for path in ("controller:x", "x"):
        (finding,) = wanted("none", "none", sources={NAME: path}).findings
        assert f"the source of {NAME}, x, is no whole path" in str(finding)


def test_home_is_that_of_who_runs_ansible(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    one = node_plans(1)["spark1"]
    served = replace(one, models=one.here[0].models, model_cache=one.here[0].model_cache)
    (name,) = {model.name for model in served.models}
    model = {**seen()[0], "name": name, "ref": served.models[0].revision}
    told = {"changed": False, "environments": {}, "models": [model]}
    variables = {"spark1": {"p": served.as_dict(), "s": told}}
    task = {"ansible_play_hosts_all": ["spark1"], "ansible_play_hosts": ["spark1"], "hostvars": variables}
    options = {"plans": "p", "seen": "s", "sources": {name: "controller:~/x"}}
    made = planner.run("artifacts_wanted", PLANNERS["artifacts_wanted"], options, task)
    assert made["bring"][0]["source"] == "/home/me/x", made


def test_what_the_layer_leaves_alone():
    assert "directory of the nodes" in wanted([], model="/models/mine").lines[0]
    assert "not from a hub" in wanted(seen(where="elsewhere", held=None)).lines[0]
    assert "a cache of its own" in wanted("none", environment={"HF_HUB_CACHE": "/mine"}).lines[0]
    last = wanted("none", "none", environment={"HF_HUB_CACHE": "/mine"}, only="spark2")
    assert not last.bring and "environment on spark2 names a cache of its own" in last.lines[0]
    offline = wanted("none", environment={"HF_HUB_OFFLINE": "1"})
    assert not offline.bring and "no node has it, and its environment forbids downloads" in str(offline.findings[0])
    assert wanted("none", "whole", environment={"HF_HUB_OFFLINE": "1"}).bring


# --- a model that has to be brought, as the tasks go through it

HOSTS = ("spark1", "spark2", "spark3")
BRING = {
    "name": NAME,
    "ref": "",
    "hosts": list(HOSTS),
    "seed": "spark1",
    "obtain": "download",
    "revision": "",
    "home": HOME,
    "environment": {},
    "source": "",
}
LISTING = {"name": NAME, "revision": COMMIT, "hub": "https://huggingface.co", "files": 15, "size": 16 * GB}
LISTING["left_out"] = {"duplicates": 3 * GB}
LISTED = {"spark1": LISTING}


def look(state="none", free=900 * GB, kept=(), **known):
    return {
        "room": {"free": free, "total": 10**12},
        "models": [held(state, **known)],
        "kept": list(kept),
        "referred": [{"name": "org/serving", "ref": "", "why": "serves now"}],
    }


def kept(name, revision=OTHER, frees=50 * GB, refs=("main",)):
    known = {"files": 3, "size": frees, "frees": frees, "used_at": 1.7e9, "manifest": True, "broken": []}
    return {"name": name, "revision": revision, "refs": list(refs), **known}


def run(planned, gathered, **options):
    variables = {host: {} for host in HOSTS}
    for option, values in gathered.items():
        options[option] = f"__{option}"
        for host, value in values.items():
            variables[host][f"__{option}"] = value
    task = {"ansible_play_hosts_all": HOSTS, "ansible_play_hosts": HOSTS, "hostvars": variables}
    return planner.run(planned, PLANNERS[planned], options, task)


def room(*looks, **bring):
    gathered = {"looks": dict(zip(HOSTS, looks)), "facts": facts()}
    return run("artifacts_room", {**gathered, "listing": LISTED}, bring={**BRING, **bring})


def facts(*apart):
    """Hosts of ``apart`` are on another network than the rest."""
    found = {}
    for host, fact in assumed_facts(HOSTS).items():
        network = 9 if host in apart else 0
        rail = Rail(0, 0, "0000", "enp1s0f0np0", "rocep1s0f0", 1, f"10.100.{network}.{fact.rank + 1}", 24, 9000, 200)
        found[host] = replace(fact, rails=(rail,), cluster_address=rail.address).as_dict()
    return found


def test_nodes_that_share_no_cable_fetch_for_themselves():
    looks = dict(zip(HOSTS, (look(), look(), look("whole"))))
    gathered = {"looks": looks, "facts": facts("spark2"), "listing": LISTED}
    made = run("artifacts_room", gathered, bring=BRING)
    assert not made.get("failed") and made["aside"], made
    (line,) = made["lines"]
    assert line.startswith(f"{NAME}: spark2: no node that has the model") and "every engine fetches" in line
    for other in ({"environment": {"HF_HUB_OFFLINE": "1"}}, {"obtain": "import"}):
        made = run("artifacts_room", gathered, bring={**BRING, **other})
        assert made["failed"] and "spark2: no node that has the model" in made["msg"]
    new = run("artifacts_room", {**gathered, "facts": {host: {} for host in HOSTS}}, bring=BRING)
    assert not new.get("failed") and not new["aside"], new


def test_sizes_are_told_before_a_byte_moves():
    made = room(look(), look("broken", there=15 * GB), look("whole"))
    assert made["revision"] == COMMIT
    assert made["lines"] == [
        f"{NAME} {COMMIT[:12]}: 16.0 GB in 15 files of https://huggingface.co, 3.0 GB there are not needed",
        "spark1 fetches 16.0 GB, 900.0 GB are free there",
        "spark2 gets 1.0 GB over the fabric, 900.0 GB are free there",
        "spark3 has it",
    ]


def test_what_is_sent_needs_room_like_a_download():
    made = room(look(), look(), look("whole"), obtain="send")
    assert made["lines"][1] == "spark1 gets 16.0 GB from this computer, 900.0 GB are free there"
    assert "needs 16.0 GB" in room(look(free=7 * GB), look(), look(), obtain="send")["msg"]
    gathered = {"looks": dict(zip(HOSTS, (look(), look(), look("whole"))))}
    gathered |= {"facts": facts("spark2"), "listing": LISTED}
    apart = run("artifacts_room", gathered, bring={**BRING, "obtain": "send"})
    assert apart["failed"] and "spark2: no node that has the model" in apart["msg"]


def test_a_token_goes_to_the_hub_only():
    text = (ROOT / "roles/artifacts/vars/main.yml").read_text(encoding="utf-8")
    told = jinja2.Environment().from_string(yaml.safe_load(text)["__artifacts_with_token"])
    for obtain, needed in (("download", "True"), ("send", "False"), ("import", "False"), ("", "False")):
        assert told.render(artifacts_hub_token_file="x", __artifacts_bring={"obtain": obtain}) == needed


def test_all_full_disks_are_named_at_once_with_what_could_go():
    made = room(look(free=7 * GB), look(), look(free=17 * GB - 1, kept=[kept("org/old"), kept("org/serving")]))
    assert made["failed"]
    assert "spark1: Qwen/Qwen3-8B needs 16.0 GB" in made["msg"]
    assert "10000000000 bytes (10.0 GB) are missing" in made["msg"]
    assert "spark3: " in made["msg"] and "1 bytes" in made["msg"] and "spark2" not in made["msg"]
    assert "could be removed: org/old bbbbbbbbbbbb (50.0 GB)" in made["msg"] and "org/serving" not in made["msg"]


def test_what_is_linked_needs_no_room():
    def full(obtain, copied):
        gathered = {"looks": dict(zip(HOSTS, (look(free=2 * GB), look(), look()))), "facts": facts()}
        gathered["listing"] = {"spark1": {**LISTING, "copied": copied}}
        return run("artifacts_room", gathered, bring={**BRING, "obtain": obtain}).get("msg", "")

    for obtain in ("import", "adopt"):
        assert full(obtain, 0) == full(obtain, GB) == ""
        assert "spark1: Qwen/Qwen3-8B needs 3.0 GB" in full(obtain, 3 * GB)


def test_a_hub_that_tells_another_commit_is_refused():
    made = room(look(), look(), look(), ref=OTHER)
    assert f"https://huggingface.co calls {OTHER} {COMMIT}" in made["msg"]


FILE = manifest.File("config.json", 2, "1" * 64, "2" * 40)
MANIFEST = manifest.Manifest(NAME, COMMIT, (FILE,))
HAD = {**{host: {"skipped": True} for host in HOSTS}, "spark1": {"manifest": MANIFEST.as_dict()}}


def fan_out(*looks, **options):
    gathered = {"looks": dict(zip(HOSTS, looks)), "facts": facts(), "had": HAD}
    return run("artifacts_fan_out", gathered, bring=BRING, **options)


def test_who_lacks_it_gets_it_from_who_has_it():
    digest = MANIFEST.digest
    made = fan_out(look(), look(), look("whole", digest=digest), rate_mb_s=100)
    assert not made.get("failed"), made
    (only,) = made["rounds"]
    assert (only["offers"], made["digest"]) == (["spark1"], digest)
    work = only["works"]["spark2"]
    assert (work["host"], work["addresses"], work["rate"], work["ref"]) == ("spark1", ["10.100.0.1"], 10**8, "main")
    both = fan_out(look(), look(), look(), rate_mb_s=100)["rounds"][0]["works"]
    assert {work["rate"] for work in both.values()} == {5 * 10**7}  # one node sends to both
    assert fan_out(*[look("whole", digest=digest)] * 3)["rounds"] == []


def test_a_manifest_of_another_model_is_refused():
    gathered = {"looks": dict.fromkeys(HOSTS, look()), "facts": {host: {} for host in HOSTS}, "had": HAD}
    for changed in ({"name": "org/other"}, {"ref": OTHER}):
        made = run("artifacts_fan_out", gathered, bring={**BRING, **changed})
        assert f"its manifest is of {NAME} {COMMIT}" in made["msg"]


def test_where_a_plan_cannot_be_read_nothing_is_removed():
    looks = {host: {**look(kept=[kept("org/old")]), "plans": "it is of another release"} for host in HOSTS}
    made = run("artifacts_unused", {"looks": looks}, named=[])
    assert made["failed"] and "spark1: org/old bbbbbbbbbbbb may be what serves: it is of another release" in made["msg"]


def test_a_node_that_serves_nothing_is_looked_at_once_too():
    """All nodes say what they have, also where only this layer is run."""
    tasks = yaml.safe_load((ROOT / "roles/artifacts/tasks/main.yml").read_text(encoding="utf-8"))
    looks = jinja2.Environment().compile_expression(tasks[0]["when"])
    plan_of = {"models": []}
    assert looks(spark_plan=plan_of)
    assert not looks(spark_plan=plan_of, spark_engine_inputs={"models": []})
    assert looks(spark_plan={"models": [1]}, spark_engine_inputs={"models": []})


def test_a_token_that_comes_in_a_check_goes_in_a_check():
    tasks = [
        task
        for name in ("token", "bring")
        for one in yaml.safe_load((ROOT / f"roles/artifacts/tasks/{name}.yml").read_text(encoding="utf-8"))
        for task in (one, *one.get("block", ()), *one.get("always", ()))
        if {"ansible.builtin.file", "ansible.builtin.copy"} & set(task)
    ]
    assert [task["check_mode"] for task in tasks] == [False] * 3


def test_what_is_kept_out_of_the_log_tells_why_it_failed():
    for name in ("token",):
        tasks = yaml.safe_load((ROOT / f"roles/artifacts/tasks/{name}.yml").read_text(encoding="utf-8"))
        (block,) = (task for task in tasks if "rescue" in task)
        assert [task["no_log"] for task in block["block"]] == [True]
        (told,) = (task["ansible.builtin.fail"]["msg"] for task in block["rescue"])
        assert "ansible_failed_result.msg" in told


def test_where_something_was_brought_is_remembered_over_all_models():
    did, did_not = ({"result": {"changed": changed}} for changed in (True, False))
    gathered = {"obtained": dict(zip(HOSTS, (did_not, did, {"skipped": True})))}
    assert run("artifacts_here", gathered, before=["spark3"])["hosts"] == ["spark3", "spark2"]


def test_all_have_the_same_in_the_end_or_are_named():
    result = {"digest": DIGEST, "changed": True, "sources": {"spark1": 16 * GB}}
    options = {"model": NAME, "seed": "spark1", "digest": DIGEST, "receivers": ["spark2", "spark3"]}
    worked = {"spark1": {"skipped": True}, "spark2": {"result": result}, "spark3": {"result": result}}
    made = run("artifacts_done", {"worked": worked}, **options)
    assert not made.get("failed"), made
    assert made["lines"][0] == f"{NAME} is whole on spark2: 16.0 GB from spark1"
    assert made["hosts"] == ["spark2", "spark3"]
    worked["spark3"] = {"result": {**result, "digest": "e" * 64}}
    made = run("artifacts_done", {"worked": worked}, **options)
    assert made["failed"] and "spark3: Qwen/Qwen3-8B is not what spark1 has" in made["msg"]


def test_what_is_where_and_what_nobody_needs():
    looks = {host: look(kept=[kept("org/old"), kept("org/serving", COMMIT)]) for host in HOSTS}
    lines = run("artifacts_listing", {"looks": looks})["lines"]
    assert lines[0] == "spark1: 900.0 GB of 1000.0 GB are free"
    assert "org/old bbbbbbbbbbbb: 50.0 GB, last read 2023-11-14, verified, not used by a plan" in lines[1]
    assert lines[2].endswith("verified, serves now")
    made = run("artifacts_export", {"looks": looks}, host="spark2", models=[])
    assert made["models"] == [f"org/serving@{COMMIT}"]
    made = run("artifacts_export", {"looks": looks}, host="spark2", models=["org/none"])
    assert made["failed"] and "there is no model of what is named" in made["msg"]
    made = run("artifacts_unused", {"looks": looks}, named=[])
    assert made["removals"]["spark2"] == {"models": [{"name": "org/old", "revision": OTHER}], "images": []}
    assert made["lines"][0] == "spark1: org/old bbbbbbbbbbbb frees 50.0 GB"
    assert run("artifacts_unused", {"looks": looks}, named=["org/none"])["lines"] == ["Nothing is unused."]
    refused = run("artifacts_unused", {"looks": looks}, named=["org/serving"])
    assert refused["failed"] and "org/serving aaaaaaaaaaaa: serves now" in refused["msg"]


def image(name, number, known=(), why="", **more):
    told = {"id": f"sha256:{number * 64}", "names": [name] if name else [], "digests": [], "known": list(known)}
    return {**told, "size": 20 * GB, "used_at": 1700006400 if known else 0, "why": why, **more}


def test_images_go_when_no_plan_refers_to_them_any_more():
    images = [
        image("vllm:new", "1", ["vllm:new"], "serves now"),
        image("vllm:old", "2", ["vllm:old"]),
        image("", "3", ["vllm:moved"]),
        image("webui:main", "4"),
        image("webui:old", "5", why="needed by container web (exited)"),
        image("vllm:kept", "6", ["vllm:first"], names=["mine:1", "vllm:first"]),
    ]
    looks = {host: {**look(), "images": images, "docker": ""} for host in HOSTS}
    lines = run("artifacts_listing", {"looks": looks})["lines"]
    assert "  image vllm:new 111111111111: 20.0 GB, last in a plan 2023-11-15, serves now" in lines
    assert "  image webui:main 444444444444: 20.0 GB, in no plan so far, removed only when you name it" in "\n".join(
        lines
    )
    assert lines[2].startswith("  image mine:1, vllm:first 666666666666") and lines[1].startswith(
        "  image without a name"
    )
    made = run("artifacts_unused", {"looks": looks}, named=[])
    wanted = [("", "3", []), ("mine:1", "6", ["vllm:first"]), ("vllm:old", "2", ["vllm:old"])]
    assert made["removals"]["spark1"]["images"] == [{"id": f"sha256:{n * 64}", "names": k} for _name, n, k in wanted]
    assert "spark1: image vllm:old 222222222222 frees up to 20.0 GB" in made["lines"]
    for named, names in (("webui:main", ["webui:main"]), ("4" * 12, ["webui:main"]), (f"sha256:{'3' * 64}", [])):
        (one,) = run("artifacts_unused", {"looks": looks}, named=[named])["removals"]["spark1"]["images"]
        assert one["names"] == names
    for named, why in (("vllm:new", "serves now"), ("webui:old", "needed by container web")):
        refused = run("artifacts_unused", {"looks": looks}, named=[named])
        assert refused["failed"] and why in refused["msg"]
    unread = {host: {**one, "plans": "it is of another release"} for host, one in looks.items()}
    assert "may be what serves" in run("artifacts_unused", {"looks": unread}, named=[])["msg"]
    silent = {host: {**look(), "images": [], "docker": "Docker does not answer"} for host in HOSTS}
    assert "  images: Docker does not answer" in run("artifacts_listing", {"looks": silent})["lines"]
    assert run("artifacts_unused", {"looks": silent}, named=[])["lines"][0].endswith(
        "images stay: Docker does not answer"
    )
