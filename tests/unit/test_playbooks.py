# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What a user sees before any machine is contacted: real ansible-playbook runs that have to be refused."""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
from xml.etree import ElementTree

import preflight_inputs
import pytest
import report_samples
import yaml
from ansible.inventory.manager import InventoryManager
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template
from ansible.vars.manager import VariableManager
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._preflight import layers as preflight_layers
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._rules.rule import MODELS

ROOT = pathlib.Path(__file__).resolve().parents[2]
ANSIBLE = pathlib.Path(sys.executable).parent / "ansible-playbook"
pytestmark = pytest.mark.slow
FULL = pytest.mark.full
INVENTORIES = sorted(path.name for path in (ROOT / "inventories").glob("[0-9]spark*"))


def play(*arguments: str, cwd: pathlib.Path = ROOT, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "ANSIBLE_NOCOLOR": "1",
        "ANSIBLE_LOCALHOST_WARNING": "False",
        "SPARKMATRIX_LOG_FOLDER": "none",
        **variables,
    }
    return subprocess.run(
        [str(ANSIBLE), *arguments], cwd=cwd, env=environment, capture_output=True, text=True, timeout=300, check=False
    )


def inventory(tmp_path: pathlib.Path, hosts: str, variables: str = "") -> str:
    """An inventory whose hosts nobody answers for (TEST-NET-1), so that only the checks before contact can pass."""
    path = tmp_path / "hosts.yml"
    path.write_text(
        f"all:\n  children:\n    sparks:\n      vars:\n        fabric_mtu: 9000\n{variables}      hosts:\n{hosts}"
    )
    return str(path)


TWO = """\
        spark1: {ansible_host: 192.0.2.1, spark_rank: 0}
        spark2: {ansible_host: 192.0.2.2, spark_rank: 1}
"""


@FULL
def test_a_restart_for_some_machines_stops_none(tmp_path):
    done = play("playbooks/restart.yml", "-i", inventory(tmp_path, TWO), "--limit", "spark1")
    assert done.returncode != 0
    assert "spark2: left out by --limit" in done.stdout + done.stderr
    assert "Stop the keepers" not in done.stdout


def test_several_mistakes_are_reported_at_once(tmp_path):
    hosts = TWO.replace("rank: 1", "rank: 0").replace("192.0.2.2", "192.0.2.1")
    done = play("site.yml", "-i", inventory(tmp_path, hosts, "        engine_recipee: x\n"))
    said = done.stdout + done.stderr
    for says in ("spark_rank 0 is given 2 times", "192.0.2.1", "engine_recipee"):
        assert says in said
    assert done.returncode != 0 and "hosts | Read the machine" not in said
    assert "ansible.cfg: " not in said  # in the folder of the collection it is read


def test_an_inventory_without_sparks_does_not_end_green():
    done = play("site.yml", "-i", "localhost,")
    assert done.returncode != 0
    assert "there is no host in the group 'sparks'" in done.stdout + done.stderr


@FULL
def test_a_checkout_that_lost_its_link_says_so(tmp_path):
    for name in ("playbooks", "inventories"):
        shutil.copytree(ROOT / name, tmp_path / name, symlinks=True)
    shutil.copy(ROOT / "site.yml", tmp_path)
    lost = tmp_path / "collections/ansible_collections/sparkmatrix/cluster"
    lost.parent.mkdir(parents=True)
    lost.write_text("../../..")  # what unzip and git on Windows leave
    done = play("site.yml", "-i", "inventories/4spark", cwd=tmp_path)
    assert done.returncode != 0
    assert "ln -sfn ../../.. collections/ansible_collections/sparkmatrix/cluster" in " ".join(
        (done.stdout + done.stderr).split()
    )


@FULL
def test_started_in_another_folder_it_works_and_says_what_is_not_read(tmp_path):
    wrong = inventory(tmp_path, TWO, "        fabric_mtuu: 9000\n")
    done = play(str(ROOT / "playbooks/preflight.yml"), "-i", wrong, cwd=tmp_path, ANSIBLE_CONFIG="", HOME=str(tmp_path))
    said = " ".join((done.stdout + done.stderr).split())
    assert "there is no variable fabric_mtuu" in said
    assert f"ansible.cfg: it is not read, since this run was started in {tmp_path}" in said
    assert f"Start it in {ROOT}, or: export ANSIBLE_CONFIG={ROOT}/ansible.cfg" in said
    assert "answers of machines become variables" in said and "ANSIBLE_INJECT_FACT_VARS=false" in said


@pytest.mark.parametrize("name", INVENTORIES)
def test_every_inventory_loads(name):
    loader = DataLoader()
    loader.set_basedir(str(ROOT))  # else what is found in one working directory is looked for in all
    loaded = InventoryManager(loader, sources=[str(ROOT / "inventories" / name)])
    hosts = loaded.get_hosts("sparks")
    assert len(hosts) == int(re.match(r"\d+", name)[0])
    for host in hosts:
        known = VariableManager(loader, loaded).get_vars(host=host)
        assert known["ansible_host"] and known["ansible_user"] and known["engine_recipe"]


def test_the_plan_is_printed_without_a_machine(tmp_path):
    done = play("playbooks/plan.yml", "-i", inventory(tmp_path, TWO), "-e", "engine_recipe=gpt-oss-120b")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Assumed, as no machine was asked: " in " ".join(done.stdout.split())
    assert "no answer" not in done.stdout and "nothing was changed" in done.stdout


@pytest.mark.parametrize("by_number", [True, pytest.param(False, marks=FULL)])
def test_recipes_are_listed_for_an_inventory_or_a_number(tmp_path, by_number):
    words = ("-e", "recipes_nodes=2") if by_number else ("-i", inventory(tmp_path, TWO))
    done = play("playbooks/recipes.yml", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "recipe(s) fit 2 Spark(s)" in done.stdout
    lines = done.stdout.splitlines()
    (heading,) = [line for line in lines if line.split()[:2] == ["Name", "For"]]
    (found,) = [line for line in lines if line.split()[:1] == ["minimax-m2.7-awq"]]
    assert heading.index("Requests") == found.index("2 x 64k")


@FULL
def test_without_an_inventory_a_number_is_asked_for():
    none = play("playbooks/recipes.yml")
    assert "recipes_nodes=2" in " ".join(none.stdout.split())
    assert "No inventory" not in none.stderr and "implicit localhost" not in none.stderr


@FULL
def test_a_recipe_of_others_is_translated_into_a_file(tmp_path):
    theirs, ours = tmp_path / "their.yaml", tmp_path / "new/mine.yml"
    theirs.write_text(
        "model: openai/gpt-oss-20b\nruntime: vllm\ncontainer: some/engine:1.2\n"
        "command: vllm serve {model} --max-model-len 8192\n"
    )
    done = play("playbooks/recipes.yml", "-e", f"recipes_translate={theirs}", "-e", f"recipes_save={ours}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Nothing was left out." in done.stdout
    assert yaml.safe_load(ours.read_text())["command"]["words"][3:5] == ["--max-model-len", "8192"]
    assert "context: 8192" in (tmp_path / "new/mine-vllm.yml").read_text()


def test_preflight_says_what_a_run_would_and_a_full_disk_can_be_emptied():
    def checked(playbook):
        return yaml.safe_load((ROOT / playbook).read_text())[0].get("vars", {}).get("spark_layers")

    assert checked("playbooks/preflight.yml") == checked("playbooks/site.yml")
    assert not MODELS & set(checked("playbooks/artifacts.yml"))


@FULL
def test_the_report_is_made_of_a_folder_without_a_machine(tmp_path):
    run = report_samples.hostile("{{ 1 // 0 }}<script>")
    (tmp_path / "run.json").write_text(json.dumps(run.as_dict()))
    done = play("playbooks/report.yml", "-e", f"report_from={tmp_path}", "-e", f"report_path={tmp_path}/page.html")
    assert done.returncode == 0, done.stdout + done.stderr
    page = tmp_path / "page.html"
    assert "{{ 1 // 0 }}&lt;script&gt;" in page.read_text() and "1 problem and 1 warning" in done.stdout
    assert page.stat().st_mode & 0o777 == 0o600
    assert ElementTree.parse(tmp_path / "page.xml").getroot().get("failures") == "1"
    assert json.loads((tmp_path / "page.json").read_text())["outcome"] == "fail"


@FULL
@pytest.mark.parametrize("playbook", ["plan", "sbatch"])
def test_a_mistyped_variable_is_refused_where_nothing_is_started(tmp_path, playbook):
    done = play(f"playbooks/{playbook}.yml", "-i", inventory(tmp_path, TWO), "-e", "engine_contxt=4096")
    assert done.returncode != 0
    assert "there is no variable engine_contxt" in done.stdout
    assert "Did you mean engine_context?" in done.stdout


@FULL
def test_the_ssh_configuration_goes_by_the_inventory(tmp_path):
    file = tmp_path / "ssh" / "sparks.conf"
    variables = f"        access_client_file: {file}\n        access_client_forwards: {{9000: 127.0.0.1:8000}}\n"
    login = "ansible_user: me, ansible_port: 2222, ansible_ssh_private_key_file: ~/.ssh/spark"
    hosts = TWO.replace("spark_rank: 1", f"spark_rank: 1, {login}")
    done = play("playbooks/ssh_config.yml", "-i", inventory(tmp_path, hosts, variables))
    assert done.returncode == 0, done.stdout + done.stderr
    assert file.read_text() == (
        "# Written by playbooks/ssh_config.yml of sparkmatrix.cluster\n"
        "Host spark1\n    HostName 192.0.2.1\n    ServerAliveInterval 30\n"
        "Host spark1-tunnel\n    HostName 192.0.2.1\n    ServerAliveInterval 30\n"
        "    # The services of the cluster on this computer's loopback\n"
        "    LocalForward 127.0.0.1:9000 127.0.0.1:8000\n"
        "Host spark2\n    HostName 192.0.2.2\n    User me\n    Port 2222\n"
        '    IdentityFile "~/.ssh/spark"\n    ServerAliveInterval 30\n'
    )


@FULL
def test_a_jump_host_is_on_every_way(tmp_path):
    """Of the inventory, and where only ssh's own configuration knows it; that is named in the environment here."""
    own = tmp_path / "own"
    own.write_text("Host 192.0.2.2\n  ProxyCommand nc -X 5 -x proxy:1080 %h %p\nHost spark*\n  ProxyJump x\n")
    file = tmp_path / "sparks.conf"
    variables = f"        access_client_file: {file}\n        access_client_forwards: {{9000: 127.0.0.1:8000}}\n"
    hosts = TWO.replace("spark_rank: 0", 'spark_rank: 0, ansible_ssh_common_args: "-o ProxyJump=me@bastion.example"')
    where = inventory(tmp_path, hosts, variables)
    done = play("playbooks/ssh_config.yml", "-i", where, ANSIBLE_SSH_EXTRA_ARGS=f"-F {own}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.findall(r"Host (\S+)\n.*\n    (Proxy.*)", file.read_text()) == [
        ("spark1", "ProxyJump me@bastion.example"),
        ("spark1-tunnel", "ProxyJump me@bastion.example"),
        ("spark2", "ProxyCommand nc -X 5 -x proxy:1080 %h %p"),
    ]


@FULL  # what goes into it: _access/test_tunnels.py
def test_the_tunnels_go_by_the_inventory_and_its_secrets_are_not_read(tmp_path):
    file = tmp_path / "sparks.conf"
    tmp_path.chmod(0o755)
    wanted = {"access_client_file": str(file), "gateway_listen": ["192.0.2.1"], "observability_enabled": True}
    keys = [{"name": "alice", "key": "{{ vault_that_is_locked }}"}]
    variables = "".join(
        f"        {name}: {json.dumps(value)}\n" for name, value in {**wanted, "gateway_keys": keys}.items()
    )
    done = play("playbooks/ssh_config.yml", "-i", inventory(tmp_path, TWO, variables))
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.findall(r"LocalForward (.*)", file.read_text()) == [
        "127.0.0.1:8000 127.0.0.1:8000",
        "127.0.0.1:8443 192.0.2.1:8443",
        "127.0.0.1:3000 127.0.0.1:3000",
        "127.0.0.1:9090 127.0.0.1:9090",
    ]
    assert "ssh -N spark1-tunnel" in done.stdout and "127.0.0.1:3000: Grafana" in done.stdout
    assert tmp_path.stat().st_mode & 0o777 == 0o755  # a folder that is there keeps its rights


# Two machines, one of them with two addresses; whoever asks ssh is written down and let in nowhere.
STRANGERS = {
    "avahi-browse": """cat <<'END'
=;eno1;IPv4;spark-1a2b;_ssh._tcp;local;spark-1a2b.local;198.51.100.1;22;
=;eno2;IPv4;spark-1a2b;_ssh._tcp;local;spark-1a2b.local;198.51.100.9;22;
=;eno1;IPv4;spark-3c4d;_ssh._tcp;local;spark-3c4d.local;198.51.100.2;22;
END""",
    "ssh-keyscan": """cat <<'END'
198.51.100.1 ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEVKn7UdAGCDVTEIvgYWiFEl0qjTUqZzIDRYg4Nuk0O7
198.51.100.9 ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEVKn7UdAGCDVTEIvgYWiFEl0qjTUqZzIDRYg4Nuk0O7
198.51.100.2 ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIPLpMqCUnXKc3nQYg7Q8s1BZQyxL9v8p8u0nYk0wJcWm
END""",
    "ssh": """for word; do
  case "$word" in
    UserKnownHostsFile=*) file=${file:-${word#*=}} ;; # the first one counts
    StrictHostKeyChecking=*) check=${check:-${word#*=}} ;;
  esac
done
echo "ssh $*" >> "$ASKED"
if [ "$check" = accept-new ]; then
  echo "198.51.100.1 ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEVKn7UdAGCDVTEIvgYWiFEl0qjTUqZzIDRYg4Nuk0O7" > "$file"
fi
echo "No ED25519 host key is known for 198.51.100.1 and you have requested strict checking." >&2
exit 255""",
    "sshpass": 'echo "sshpass $*" >> "$ASKED"; exit 255',
}
FINGERPRINT = "SHA256:6TdwafL52qVd8XH32caUAGBHFo7TCZUA/BRK5DytPlg"


@pytest.fixture
def strangers(tmp_path):
    """What runs instead of the real programs, and the file with what they were asked."""
    for name, text in STRANGERS.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    return {"PATH": f"{tmp_path}:{os.environ['PATH']}", "ASKED": str(tmp_path / "asked"), "ANSIBLE_SSH_RETRIES": "0"}


def test_discovery_lists_machines_once_and_leaves_known_hosts_alone(tmp_path, strangers):
    folder = tmp_path / "found"
    known = tmp_path / "known_hosts"
    mine = f"-o UserKnownHostsFile={known} -o StrictHostKeyChecking=accept-new -o ForwardAgent=yes"
    done = play(
        "playbooks/discover.yml", "-e", f"discover_inventory={folder}", "-e", json.dumps({"discover_ssh_args": mine}),
        **strangers,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    listed = [line.strip("# ") for line in (folder / "hosts.yml").read_text().splitlines()]
    assert [line for line in listed if "no login with a key" in line] == [
        "spark-1a2b no login with a key, so not looked at",
        "spark-3c4d no login with a key, so not looked at",
    ]
    assert [line for line in listed if line.startswith("ansible_host")] == [
        "ansible_host: 198.51.100.1",
        "ansible_host: 198.51.100.2",
    ]
    assert f"shows the host key {FINGERPRINT} (ED25519)" in listed and "answers at 198.51.100.9 too" in listed
    assert "fabric_topology: auto" in (folder / "group_vars/sparks.yml").read_text()
    asked = pathlib.Path(strangers["ASKED"]).read_text().splitlines()
    assert len(asked) == 3 and not known.exists()
    for line in asked:
        scratch = re.search("UserKnownHostsFile=([^ ]*)", line)[1]
        assert scratch != str(known) and not pathlib.Path(scratch).exists()
        for option, value in (("StrictHostKeyChecking", "yes"), ("BatchMode", "yes"), ("ForwardAgent", "no")):
            assert re.search(f"{option}=([a-z-]*)", line)[1] == value, line


def test_no_login_where_another_host_key_was_confirmed(tmp_path, strangers):
    (tmp_path / "password").write_text("secret")
    named = {"discover_addresses": "198.51.100.1 198.51.100.2", "discover_fingerprints": "SHA256:x,SHA256:y"}
    words = ["--connection-password-file", str(tmp_path / "password"), "-e", json.dumps(named)]
    folder = tmp_path / "new/mine"
    done = play("playbooks/discover.yml", *words, "-e", f"discover_inventory={folder}", **strangers)
    said = " ".join((done.stdout + done.stderr).split())
    assert done.returncode == 2 and not folder.parent.exists()
    assert said.count("These machines cannot be taken; nothing was written:") == 1
    assert f"198.51.100.1: it shows the host key {FINGERPRINT} (ED25519), and you have confirmed SHA256:x and" in said
    assert not pathlib.Path(strangers["ASKED"]).exists()


@FULL
def test_the_own_computer_is_taken_without_ssh(tmp_path, strangers):
    named = {"discover_addresses": "127.0.0.1", "discover_fingerprints": "SHA256:x", "preflight_require_gb10": False}
    folder = tmp_path / "mine"
    done = play("playbooks/discover.yml", "-e", json.dumps({**named, "discover_inventory": str(folder)}), **strangers)
    assert done.returncode == 0, done.stdout
    hosts = yaml.safe_load((folder / "hosts.yml").read_text())["all"]["children"]["sparks"]["hosts"]
    assert hosts == {"spark1": {"ansible_host": "127.0.0.1", "spark_rank": 0, "ansible_connection": "local"}}
    assert not pathlib.Path(strangers["ASKED"]).exists()


@FULL  # what is proposed: _access/test_proposal.py
def test_a_network_without_machines_gives_no_inventory(tmp_path):
    words = ("playbooks/discover.yml", "-e", f"discover_inventory={tmp_path}/mine", "-e", "discover_cidr=192.0.2.0/31")
    done = play(*words)
    assert done.returncode == 0, done.stdout
    file = tmp_path / "mine/hosts.yml"
    assert "nothing was written" in done.stdout and not file.exists()
    file.parent.mkdir()
    file.write_text("all:\n  children:\n    sparks:\n      hosts:\n" + TWO)
    again = play(*words)
    said = " ".join((again.stdout + again.stderr).split())
    assert again.returncode != 0 and "is there already, and was not changed." in said
    assert "spark1 (192.0.2.1) is in it, and was not found" in said and "-e discover_inventory=" in said
    assert file.read_text().endswith(TWO)


def test_the_first_login_sends_no_password_to_a_stranger(tmp_path, strangers):
    (tmp_path / "password").write_text("secret")
    words = ["--connection-password-file", str(tmp_path / "password")]
    hosts = inventory(tmp_path, TWO.splitlines(keepends=True)[0])
    done = play("playbooks/bootstrap.yml", "-i", hosts, *words, ANSIBLE_HOST_KEY_CHECKING="false", **strangers)
    said = " ".join((done.stdout + done.stderr).split())
    assert done.returncode != 0
    assert f"shows the host key {FINGERPRINT}" in said and f"-e node_fingerprint={FINGERPRINT}" in said
    asked = pathlib.Path(strangers["ASKED"]).read_text().splitlines()
    assert asked and all("PreferredAuthentications=none" in line and line.startswith("ssh ") for line in asked)


@pytest.mark.parametrize(
    ("login", "rename", "moves"),
    [
        ("spark-1a2b.local", True, True),
        ("SPARK-1A2B.local.", True, True),
        ("spark-1a2b.local", False, False),
        ("spark1.local", True, False),
        ("192.0.2.1", True, False),
        ("spark-1a2b.lan", True, False),
    ],
)
def test_no_new_host_name_takes_the_name_of_the_login_away(login, rename, moves):
    text = yaml.safe_load((ROOT / "roles/access/vars/main/admin.yml").read_text())["__access_login_moves"]
    given = {"ansible_host": login, "inventory_hostname": "spark1", "access_set_hostname": rename}
    assert Templar(DataLoader(), given).template(trust_as_template(text)) is moves


@FULL
def test_a_machine_that_is_off_is_told_in_seconds(tmp_path, strangers):
    says = "ssh: connect to host 192.0.2.1 port 22: Connection timed out"
    (tmp_path / "ssh").write_text(f'#!/bin/sh\necho "$*" >> "$ASKED"\necho "{says}" >&2\nexit 255\n')
    del strangers["ANSIBLE_SSH_RETRIES"]
    done = play("playbooks/preflight.yml", "-i", inventory(tmp_path, TWO), **strangers)
    said = done.stdout + done.stderr
    assert done.returncode != 0
    both = "spark1, spark2: the machine could not be read: Failed to connect to the host via ssh: "
    assert f"{both}{says}" in said
    asked = pathlib.Path(strangers["ASKED"]).read_text().splitlines()
    # Two attempts on each machine, of five seconds at most, and nothing after them.
    assert len(asked) == 4 and all("ConnectTimeout=5 " in line for line in asked)


@pytest.mark.parametrize(
    ("layer", "tags", "skipped", "wanted"),
    [
        ("plan", ["all"], [], True),
        ("plan", ["all"], ["ray"], True),
        ("plan", ["all"], ["engine", "gateway", "verify"], True),
        ("plan", ["all"], ["plan"], False),
        ("plan", ["all"], ["plan", "ray", "engine", "gateway", "verify"], False),
        ("plan", ["fabric"], [], False),
        ("plan", ["gateway"], [], True),
        ("plan", ["ray", "engine"], ["ray"], True),
        ("plan", ["ray"], ["ray"], False),
        ("environment", ["all"], [], True),
        ("environment", ["all"], ["ray"], True),
        ("environment", ["all"], ["ray", "engine"], False),
        ("environment", ["gateway"], [], False),
        ("environment", ["engine"], [], True),
    ],
)
def test_what_several_layers_need_is_made_for_those_of_the_run(layer, tags, skipped, wanted):
    (named,) = yaml.safe_load((ROOT / f"playbooks/layers/{layer}.yml").read_text())
    (task,) = named["tasks"]
    variables = {"spark_selected_layers": preflight_layers.tagged(tags, skipped)}
    conditions = task["when"] if isinstance(task["when"], list) else [task["when"]]
    templar = Templar(DataLoader(), variables)
    assert all(templar.evaluate_conditional(trust_as_template(text)) for text in conditions) is wanted


@pytest.mark.parametrize(
    ("tags", "skipped", "wanted"),
    [
        (["all"], [], True),
        (["all"], ["engine"], False),
        (["ray"], [], False),
        (["ray", "engine"], [], True),
        (None, [], True),  # the role on its own
    ],
)
def test_models_are_looked_for_where_the_engine_was_asked_for(tags, skipped, wanted):
    text = yaml.safe_load((ROOT / "roles/engine/vars/main.yml").read_text())["__engine_asked"]
    given = {} if tags is None else {"spark_selected_layers": preflight_layers.tagged(tags, skipped)}
    assert Templar(DataLoader(), given).template(trust_as_template(text)) is wanted


@pytest.mark.parametrize(
    ("failed", "here", "goes_on", "failures"),
    [
        ([], ["a", "b"], True, []),
        (["a"], ["a", "b"], False, ["On a: no"]),
        ([], ["a"], False, ["b does not answer any more"]),
        (["a"], ["a"], False, ["On a: no", "b does not answer any more"]),
    ],
)
def test_an_upgrade_stops_nothing_where_one_node_cannot_have_it(failed, here, goes_on, failures):
    plays = {one["name"]: one for one in yaml.safe_load((ROOT / "playbooks/upgrade.yml").read_text())}
    known = {host: {"upgrade_failure": f"On {host}: no"} if host in failed else {} for host in ("a", "b")}
    variables = {"ansible_play_hosts_all": ["a", "b"], "ansible_play_hosts": here, "hostvars": known}
    templar = Templar(DataLoader(), variables)
    began = plays["Serve the new plan"]["tasks"][0]["ansible.builtin.set_fact"]["upgrade_began"]
    assert templar.template(trust_as_template(began)) is goes_on
    (gateway,) = plays["Point the gateway at the new service"]["tasks"]
    assert all(templar.evaluate_conditional(trust_as_template(text)) for text in gateway["when"]) is goes_on
    found = plays["Go back if the upgrade failed"]["vars"]["upgrade_failures"]
    assert templar.template(trust_as_template(found)) == failures


def test_verdicts_are_shown_though_the_head_is_gone_by_now(tmp_path):
    found = {
        "part": {
            "verdicts": [
                {"check": "mtu", "outcome": "fail", "scope": "node", "found": "MTU is 1500", "cause": "wrong_mtu"},
                {"check": "boot", "outcome": "warn", "scope": "node", "found": "a boot ended", "cause": "power_off"},
            ]
        }
    }
    book = [
        {
            "hosts": "sparks",
            "gather_facts": False,
            "any_errors_fatal": True,
            "tasks": [
                {
                    "ansible.builtin.include_role": {"name": "sparkmatrix.cluster.verify", "tasks_from": "verdicts"},
                    "vars": {"verify_playbook": "doctor", "verify_verdicts_dir": str(tmp_path)},
                }
            ],
        }
    ]
    (tmp_path / "book.yml").write_text(yaml.safe_dump(book))
    tmp_path.chmod(0o700)
    gone = {"ansible_host": "127.0.0.1", "ansible_port": 1, "spark_rank": 0}
    here = {"ansible_connection": "local", "spark_rank": 1}
    seen = {
        host: {"spark_node_info": {"node": node}, "spark_found_doctor": found}
        for host, node in preflight_inputs.nodes(2).items()
    }
    hosts = {"sparks": {"hosts": {"spark1": {**gone, **seen["spark1"]}, "spark2": {**here, **seen["spark2"]}}}}
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump(hosts))
    done = play("-i", str(tmp_path / "hosts.yml"), str(tmp_path / "book.yml"))
    said = done.stdout + done.stderr
    assert done.returncode != 0
    for words in ("a boot ended", "1. node: MTU is 1500", "The head keeps no verdicts: "):
        assert words in said, said
    assert tmp_path.stat().st_mode & 0o777 == 0o700 and (tmp_path / "sparkmatrix-doctor.xml").exists()


@FULL
@pytest.mark.parametrize("of_inventory", [True, False])
def test_a_run_that_ends_early_leaves_no_verdicts_of_the_one_before(tmp_path, of_inventory):
    written = [tmp_path / f"sparkmatrix-{name}" for name in ("verify.json", "verify.xml", "doctor.xml")]
    for path in written:
        path.write_text("old")
    given = {"verify_verdicts_dir": str(tmp_path)}
    hosts = {"sparks": {"hosts": {"spark1": {}}, "vars": given if of_inventory else {}}}
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump(hosts))
    more = () if of_inventory else ("-e", json.dumps(given))
    done = play("-i", str(tmp_path / "hosts.yml"), "verify.yml", "--tags", "mistyped", *more)
    assert done.returncode != 0 and "mistyped" in done.stdout + done.stderr
    assert [path.exists() for path in written] == [False, False, True]


def test_answers_end_first_wherever_an_engine_is_stopped_that_comes_back():
    """Who is not stop.yml says so, and the node lets answers end. The others, as upgrade.yml, stop nothing themselves:
    they place files, and leave it to the keeper, which does the same."""
    stops = {path.name: path.read_text() for path in (ROOT / "playbooks").glob("*.yml")}
    stops = {
        name: text for name, text in stops.items() if re.search(r"tasks_from: stop$|import_playbook: stop", text, re.M)
    }
    assert set(stops) == {"stop.yml", "restart.yml", "os_update.yml"}
    assert all((f"spark_stopped_by: {name}" in text) != (name == "stop.yml") for name, text in stops.items())


def test_every_playbook_with_verdicts_removes_its_old_ones_first():
    for path in (ROOT / "playbooks").glob("*.yml"):
        plays = [one for one in yaml.safe_load(path.read_text()) if "ansible.builtin.import_playbook" in one]
        shown = [one for one in plays if one["ansible.builtin.import_playbook"] == "layers/verdicts.yml"]
        for one in shown:
            assert plays[0]["vars"]["verdicts_of"] == one["vars"]["verdicts_of"], path.name
