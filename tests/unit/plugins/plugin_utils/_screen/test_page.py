# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import inspect
import pathlib

import pytest
from ansible.module_utils import basic
from ansible_collections.sparkmatrix.cluster.plugins.callback.page import OF_ANSIBLE
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._screen import page
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._screen.page import Diff, Page, Result

ROOT = pathlib.Path(__file__).resolve().parents[5]
FOUR = ["spark1", "spark2", "spark3", "spark4"]


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def shown(lines):
    return [line.text for line in lines]


def run(*steps, check=False, verbose=False, hosts=FOUR, playbook="site", goes_on=False):
    """Lines of a play; a step is a name, the seconds that it takes and its results."""
    clock = Clock()
    screen = Page(check=check, verbose=verbose, playbook=playbook, goes_on=goes_on, clock=clock)
    lines = screen.play("Configure and test the fabric", hosts)
    for name, seconds, *results in steps:
        lines += screen.task(name)
        clock.now += seconds
        for result in results:
            screen.result(result)
    return shown(lines + screen.end({}, False, "~/x.log"))


def every(state, **fields):
    return [Result(host, state, **fields) for host in FOUR]


def test_what_changed_nothing_is_one_line():
    lines = run(("a : b | One", 3, *every("ok")), ("Two", 5, *every("ok")), ("Three", 1, *every("skipped")))
    assert lines == [
        "Configure and test the fabric: 2 steps, nothing changed, 9 s",
        "Done in 9 s; nothing was changed. Whole log: ~/x.log",
    ]


def test_a_change_names_step_things_nodes_and_seconds():
    lines = run(
        ("sparkmatrix.cluster.fabric : apply | Place the file", 62, *every("changed", what=("/etc/a", "/etc/b"))),
        ("Restart", 1, Result("spark1", "ok"), Result("spark2", "changed"), Result("spark3", "changed")),
        *[("Look", 1, *every("ok"))] * 3,
    )
    assert lines == [
        "Configure and test the fabric",
        "  changed  Place the file: /etc/a, /etc/b (4 nodes, 1 min 2 s)",
        "  changed  Restart (spark2, spark3, 1 s)",
        "  ok       3 other steps, nothing changed; 1 min 6 s in all",
        "Done in 1 min 6 s; 2 steps changed something. Whole log: ~/x.log",
    ]


def test_check_mode_says_that_nothing_was_changed():
    lines = run(("Place", 1, *every("changed")), check=True)
    assert lines[1] == "  differs  Place (4 nodes, 1 s)"
    assert lines[-1].startswith("Done in 1 s; check mode: 1 step would change something, nothing was changed.")


def test_equal_diffs_are_shown_once_and_others_by_what_is_other():
    same = Diff("/etc/same", ("@@ -0,0 +1 @@", "+all"))
    own = [Diff("/etc/own", ("@@ -0,0 +1,4 @@", "+a", "+b", "+c", f"+address {n}")) for n in (1, 1, 1, 2)]
    lines = run(("Place", 1, *(Result(host, "changed", diffs=(same, diff)) for host, diff in zip(FOUR, own))))
    assert lines[2:-1] == [
        "    /etc/same (4 nodes)",
        "      @@ -0,0 +1 @@",
        "      +all",
        "    /etc/own (spark1..spark3)",
        "      @@ -0,0 +1,4 @@",
        "      +a",
        "      +b",
        "      +c",
        "      +address 1",
        "    /etc/own (spark4, otherwise the same)",
        "      +address 2",
    ]


def test_a_long_diff_is_cut_and_with_v_it_is_not():
    step = ("Place", 1, Result("spark1", "changed", diffs=(Diff("/etc/x", tuple("+x" for _ in range(100))),)))
    assert "      ... 60 more lines, in the log" in run(step)
    assert len(run(step, verbose=True)) == 100 + 4


def test_messages_are_text_and_said_once():
    lines = run(
        ("Report", 1, *every("ok", text="Two lines\n  as they are")),
        ("Report", 0, Result("spark1", "ok", text="of one"), Result("spark2", "ok", text="on spark2")),
    )
    assert lines[1:-1] == ["  Two lines", "    as they are", "  spark1: of one", "  on spark2"]


def test_a_refusal_is_one_block_and_the_last_of_its_play():
    lines = run(("Look", 1, *every("ok")), ("Judge", 0, Result("", "failed", text="Refused:\n  1. spark1: why")))
    assert lines == [
        "Configure and test the fabric",
        "  FAILED   Judge (0 s)",
        "  Refused:",
        "    1. spark1: why",
        "Next: mend this, then the same command again",
        "FAILED after 1 s. Whole log: ~/x.log",
    ]


@pytest.mark.parametrize("goes_on", [False, True])
def test_while_the_command_goes_on_nobody_is_told_what_to_type(goes_on):
    said = Result("", "ok", text="2 machines\nNext: review them")
    lines = [line.strip() for line in run(("Report", 1, said), playbook="discover", goes_on=goes_on)]
    assert "2 machines" in lines and ("Next: review them" in lines) is not goes_on


def test_the_end_says_what_comes_next():
    refused = "Refused:\n  1. spark1: old\n  2. spark2: old\n  3. spark3: no"
    lines = run(("Judge", 0, Result("", "failed", text=refused)))
    assert lines[-2] == "Next: mend these 2 points, then the same command again"  # as they are shown
    broken = ("Place", 1, *every("changed")), ("Start", 1, *every("failed", text="no"))
    assert run(*broken)[-2] == "Next: the same command again, when the cause is mended; it goes on from there"
    assert not any(line.startswith("Next") for line in run(broken[1]))
    assert run(("Look", 1, *every("ok")), playbook="preflight")[-2] == "Next: ansible-playbook site.yml"
    assert not any(line.startswith("Next") for line in run(("Look", 1, *every("ok")), playbook="site"))
    assert not any(
        line.text.startswith("Next")
        for line in Page(playbook="preflight", by_verbs=True, goes_on=True).end({}, False, "")
    )
    (checked,) = [one for one in Page(playbook="preflight", by_verbs=True).end({}, False, "") if "Next" in one.text]
    assert checked.text == "Next: ansible-playbook site.yml"
    typed = ["engine_recipe=a b", "engine_plan_details=true", "engine_allow=command", "x=1", '{"engine_y": 1}']
    assert page.asked(typed[1:]) == "-e engine_allow=command" and page.asked([]) == ""
    assert page.asked(typed) == "a b -e engine_allow=command", "a start needs the consent, too"
    planned = Page(playbook="plan", by_verbs=True, model="qwen3-8b").end({}, False, "")
    assert next(line.text for line in planned) == "Next: ansible-playbook site.yml qwen3-8b"
    assert shown(Page().end({}, True, "", early=True)) == [
        "Next: the same command again; it goes on from there",
        "ENDED EARLY after 0 s.",
    ]


# Playbooks that say it in their last message, or after which nothing comes.
SAYS = {"artifacts", "awx", "discover", "doctor", "drift", "first_contact", "recipes", "report", "sbatch", "ssh_config"}
SAYS |= {"status", "support", "web_ui_backup", "web_ui_restore"}


def test_every_playbook_ends_with_what_comes_next():
    playbooks = {path.stem: path.read_text() for path in (ROOT / "playbooks").glob("*.yml")}
    assert {name for name, text in playbooks.items() if "summary_of:" not in text} == SAYS | set(page.NEXT)


def test_equal_failures_are_one_and_a_repetition_refers_to_it():
    lines = run(
        ("Wait", 4, *every("failed", text="no token")), ("Again", 0, Result("spark2", "failed", text="no token"))
    )
    assert lines[1:-1] == [
        "  FAILED   Wait (4 nodes, 4 s)",
        "  no token",
        "  FAILED   Again (spark2, 0 s)",
        "  as above",
    ]


def test_what_a_rescue_deals_with_is_one_line_and_no_failure():
    lines = run(("Wait", 4, Result("spark1", "failed", text="no token\nat all " + "x" * 200, handled=True)))
    assert lines[1].startswith("  failed   Wait (spark1, 4 s), dealt with below: no token at all xxx")
    assert lines[1].endswith(" ...") and len(lines) == 3
    assert lines[-1].startswith("Done in")


def test_machines_that_do_not_answer_are_named_in_one_line():
    silent = every("unreachable", text="ssh: no route", handled=True)
    lines = run(("Look", 3, *reversed(silent)))
    assert lines[1] == "  no answer from spark1..spark4 (3 s); the reasons come below"
    lines = run(("Look", 3, Result("spark2", "unreachable", text="ssh: no route")))
    assert lines[1:4] == [
        "  FAILED   Look: no answer (spark2, 3 s)",
        "  spark2: ssh: no route",
        f"  {page.ASK_PREFLIGHT}",
    ]
    lines = run(("Look", 3, *(Result(host, "unreachable", text=f"no {host}.local") for host in reversed(FOUR))))
    assert lines[1:3] == [
        "  FAILED   Look: no answer (4 nodes, 3 s)",
        "  spark1..spark4: no spark1.local (and spark2..spark4.local)",
    ]
    assert lines[-1].startswith("FAILED")


@pytest.mark.parametrize(
    ("playbook", "words"),
    [
        ("stop", "To stop the others without spark2,spark3: the same command with --limit '!spark2:!spark3'"),
        ("reset", "When spark2,spark3 can be reached again: the same command with --limit spark2,spark3"),
    ],
)
def test_a_playbook_that_takes_a_limit_says_how_to_go_on_with_dead_machines(playbook, words):
    silent = [Result(host, "unreachable", text="ssh: no route") for host in ("spark2", "spark3")]
    lines = run(("Stop", 3, *silent), playbook=playbook)
    assert lines[3] == f"  {page.ASK_PREFLIGHT}" and lines[4].endswith(words)


@pytest.mark.parametrize(
    ("line", "rows"),
    [
        ("  short", ["  short"]),
        ("  a sentence of words that is long", ["  a sentence of", "    words that is", "    long"]),
        ("  1. a point of words", ["  1. a point of", "     words"]),
        ("  warning  of two words", ["  warning  of two", "           words"]),
        ("model     qwen, vllm on two nodes", ["model     qwen, vllm", "          on two", "          nodes"]),
        # A command is not broken, and has a line of its own where it does not fit.
        (
            "  At any time: ansible-playbook x.yml -i y, on your own computer",
            ["  At any time:", "    ansible-playbook x.yml -i y,", "    on your own", "    computer"],
        ),
        ("next      ansible-playbook x.yml  (as it is)", ["next      ansible-playbook x.yml", "          (as it is)"]),
        ("key       KEY=$(ssh head 'sudo cut -f2 /x/y')", ["key       KEY=$(ssh head 'sudo cut -f2 /x/y')"]),
        ("  the same with --limit '!a:!b' once", ["  the same with", "    --limit '!a:!b'", "    once"]),
        ("  add: severity: {unknown: warn, other: warn}", ["  add:", "    severity: {unknown: warn, other: warn}"]),
        # A row is broken between its cells.
        ("  qwen3-32b  chat and more  12  4 x 8k", ["  qwen3-32b", "      chat and more", "      12  4 x 8k"]),
        ("Done in 1 s. Whole log: ~/.local/state/x.log", ["Done in 1 s. Whole log:", "  ~/.local/state/x.log"]),
    ],
)
def test_a_terminal_breaks_sentences_and_nothing_that_is_copied(line, rows):
    told = page.folded(line, 23 if "log" in line else 20)
    assert told == rows
    assert page.folded(line, 1000) == [line]


def test_what_ansible_says_of_its_own_folder_on_a_machine_is_known():
    """It is left out of the screen by its words."""
    (said,) = (
        line for line in inspect.getsource(basic).splitlines() if "remote_tmp" in line and "did not exist" in line
    )
    assert OF_ANSIBLE.match(said[said.index("Module") :])


def test_a_warning_is_said_once_in_a_run():
    lines = run(
        ("One", 1, *every("ok", warnings=("spark1: old",))), ("Two", 1, *every("ok", warnings=("spark1: old",)))
    )
    assert [line for line in lines if "old" in line] == ["  warning  spark1: old"]


def test_with_v_unchanged_steps_are_named_and_results_shown():
    lines = run(("Look", 2, *every("ok", dump="\na: 1\n")), verbose=True)
    assert lines[1:-1] == ["  ok       Look (4 nodes, 2 s)", "    4 nodes:", "      a: 1"]


def test_notes_come_before_the_last_line():
    assert shown(Page().end({"not_measured": "the rate"}, False, "")) == [
        "Noted: not measured: the rate",
        "Done in 0 s; nothing was changed.",
    ]


def test_a_long_step_says_for_how_long_and_what_the_node_says():
    clock = Clock()
    screen = Page(clock=clock)
    assert screen.waiting() == "" and screen.waited_s == 0
    screen.play("Serve the model", FOUR)
    screen.task("sparkmatrix.cluster.engine : ready | Wait for the first token")
    clock.now = 95
    screen.result(Result("spark1", "ok"))
    assert screen.waiting("spark2 loading") == (
        "Wait for the first token: 1 min 35 s, 1 of 4 nodes done; spark2 loading"
    )
    news = "spark1 downloading cyankiwi/MiniMax-M2.7-AWQ-4bit: 34.2 of 129 GB, 118 MB/s, 13 min left"
    assert screen.waiting(news, 68) == "1 min 35 s; ... M2.7-AWQ-4bit: 34.2 of 129 GB, 118 MB/s, 13 min left"
    assert screen.waiting(news, 110) == f"1 min 35 s; {news}"
    assert screen.waiting("", 40) == "Wait for the first token: 1 min 35 s, 1 "
    assert shown(screen.still()) == [
        "Serve the model",
        "  waiting  Wait for the first token: 1 min 35 s, 1 of 4 nodes done",
    ]


@pytest.mark.parametrize(
    ("hosts", "among", "text"),
    [
        (FOUR, FOUR, "4 nodes"),
        (FOUR[:3], FOUR, "spark1..spark3"),
        (["spark3", "spark1", "spark2"], FOUR, "spark1..spark3"),
        (["spark1", "spark3", "spark4"], FOUR, "spark1, spark3, spark4"),
        (["spark1"], ["spark1"], "spark1"),
        (["localhost"], ["localhost"], ""),
        ([""], FOUR, ""),
        (["a", "b"], FOUR, "a, b"),
        (["a09", "a10", "a11"], FOUR, "a09..a11"),
    ],
)
def test_names_of_nodes(hosts, among, text):
    assert page.span_of(hosts, among) == text


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ({"msg": "why"}, "why"),
        ({"msg": "Task failed: Action failed: why"}, "why"),
        ({}, "It gave no reason."),
        ({"censored": "hidden"}, "Not shown: hidden"),
        ({"msg": "non-zero return code", "stderr": "a\n\nb\n"}, "non-zero return code\n  a\n  b"),
        ({"msg": "module failed", "module_stderr": "Traceback (most\n  x\nE: no"}, "module failed\n  E: no"),
        ({"results": [{"failed": True, "msg": "no", "item": "x"}, {"item": "y"}]}, "no"),
        ({"results": [{"failed": True, "msg": m, "item": i} for m, i in (("no", 1), ("so", 2))]}, "1: no\n2: so"),
        ({"results": [{"failed": True, "msg": "no", "item": i} for i in (1, 2)], "msg": "All items"}, "no"),
    ],
)  # fmt: skip
def test_reasons(result, text):
    assert page.reason(result) == text


@pytest.mark.parametrize(
    ("result", "names"),
    [
        ({"changed_paths": ["/a", "/b"], "path": "/c"}, ("/a", "/b")),
        ({"dest": "/d", "action": "started"}, ("/d",)),
        ({"action": "restarted"}, ("restarted",)),
        ({"action": "none"}, ()),
        ({"results": [{"changed": True, "_ansible_item_label": "one"}, {"changed": False, "path": "/x"}]}, ("one",)),
    ],
)
def test_what_changed(result, names):
    assert page.changed_things(result) == names


def test_diffs_of_modules():
    found = page.diffs([{"before": "a\nb\n", "after": {"x": 1}, "after_header": "/f"}, {"before": "", "after": ""}], 2)
    assert found == (Diff("/f", ("@@ -1,2 +1,3 @@", "-a", "-b", "+{", '+ "x": 1', "+}")),)
    assert page.diffs({"prepared": "+x\n"}, 2) == (Diff("", ("+x",)),)
    assert page.diffs({"dst_binary": True}, 2)[0].lines == ("(binary or too large to be shown)",)
    assert page.diffs(None, 2) == ()


def test_what_is_said_of_several_hosts_is_said_once():
    numbered = ["spark1: old", "spark3 eth0: no", "spark2: old", "other: old", "spark1: new"]
    text = "\n".join(["Refused:", *(f"  {n}. {line}" for n, line in enumerate(numbered, 1)), "- spark1: x"])
    assert page.merged(text, ["spark1"]) == text
    assert page.merged(text, FOUR).splitlines() == [
        "Refused:",
        "  1. spark1, spark2: old",
        "  2. spark3 eth0: no",
        "  3. other: old",
        "  4. spark1: new",
        "- spark1: x",
    ]
    assert page.merged("\n".join(f"{host}: not checked" for host in FOUR), FOUR) == "spark1..spark4: not checked"
    unknown = "\n".join(f"{host}: no address of {host}.local" for host in FOUR[:2])
    assert page.merged(unknown, FOUR) == "spark1, spark2: no address of spark1.local (and spark2.local)"
    assert page.merged(f"{unknown}\nspark3: I am spark3", FOUR).endswith("\nspark3: I am spark3")
    assert page.merged("spark1  0  1: table\n\nend", FOUR) == "spark1  0  1: table\n\nend"


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("fabric : links | Read: the links", "Read: the links"),
        (
            "a.b.preflight : Validating arguments against arg spec 'layers' - Find the layers",
            "Check settings: Find the layers",
        ),
        ("a.b.ray : Validating arguments against arg spec 'main'", "Check settings"),
    ],
)
def test_names_of_steps(name, shown):
    assert page.short(name) == shown


def test_a_command_in_quotes_stays_whole_and_ends_there() -> None:
    said = "Did you mean 'qwen3-8b'? 'uvx sparkmatrix -i office models' says which fit your machines."
    assert page.folded(said, 60) == [
        "Did you mean 'qwen3-8b'? 'uvx sparkmatrix -i office models'",
        "  says which fit your machines.",
    ]
    assert page.folded(said, 50)[1] == "  'uvx sparkmatrix -i office models' says which"
