#!/usr/bin/python
# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This file documents an action plugin of the same name; it never runs.

from __future__ import annotations

DOCUMENTATION = r"""
module: plan
short_description: Turn what was read on all machines into decisions
version_added: 0.1.0
description:
  - "Internal to this collection: no compatibility promise."
  - Runs one of the planners of the roles on the controller, and contacts no host.
  - Fails with everything that speaks against the plan, on all machines.
options:
  planner:
    description:
      - V(peers) makes keys, names and firewall rules of ssh between the machines; V(host_keys) and V(first_login)
        refuse machines that nobody has vouched for or that let nobody in; V(discovered) finds the machines behind
        addresses that answer ssh, V(proposal) writes an inventory; V(port_filter) says who reaches Ray and the ranks;
        V(management) chooses the management address of one machine; V(forwards) says what the user's ssh forwards and
        how it gets to the machines, V(ways) the latter with what ssh itself knows.
      - V(fabric) makes addresses, ranks and the environment of NCCL from devices and cables; V(fabric_verify) judges
        what was measured after the change, V(fabric_publish) says which fact counts.
      - V(fabric_discovery) says which machines can hear each other over the cables.
      - V(bandwidth) schedules the measurement of every half; V(bandwidth_verdict) judges its figures.
      - V(nccl) says which rank each machine is in a test of NCCL; V(nccl_verdicts) judges its figures.
      - V(serving_sweep) says what a benchmark asks of the services, V(serving_verdicts) judges their speed.
      - V(qos_before) and V(qos_after) judge flow control around a change.
      - V(os_update) finds one set of packages for all machines.
      - V(cluster_status) puts together what the machines say of their status.
      - V(verdicts) judges what verify has asked, and puts together what a run of site, verify, doctor or
        benchmark has measured and found; V(report) makes a page of the last ones.
      - V(doctor) judges what preflight and the nodes themselves have found, and whether the cluster serves.
      - V(first_contact) says which assumptions about real machines hold.
      - V(observability) makes files and units of Prometheus, node_exporter and Grafana of all machines.
      - V(web_ui) makes environment and unit of the chat page.
      - V(awx) says what is to be made, mended and removed in AWX, V(awx_unreached) why it could not be asked.
      - V(artifacts_wanted) finds the models that are not whole on all nodes, V(artifacts_room) compares one with the
        disks, V(artifacts_fan_out) says who fetches it from whom, V(artifacts_done) whether all have the same,
        V(artifacts_here) where something was changed; V(artifacts_listing) shows what is where, V(artifacts_unused)
        what no plan refers to, V(artifacts_export) what goes into an archive.
      - V(engine_inputs) judges whether all nodes can have the models, V(images) whether all ranks of a service have
        the same container image, V(engine_versions)
        what engines without an option table say of their options; V(engine_files) and V(ray_files) turn one machine's
        part of the engine plan into files and units.
      - V(recipes) lists the recipes that fit a number of machines; V(recipe_translation) writes a recipe of sparkrun or
        spark-vllm-docker in our words.
    type: str
    required: true
    choices:
      - management
      - forwards
      - ways
      - peers
      - host_keys
      - first_login
      - discovered
      - proposal
      - port_filter
      - artifacts_wanted
      - artifacts_room
      - artifacts_fan_out
      - artifacts_done
      - artifacts_here
      - artifacts_listing
      - artifacts_export
      - artifacts_unused
      - fabric_discovery
      - fabric
      - fabric_verify
      - fabric_publish
      - bandwidth
      - bandwidth_verdict
      - qos_before
      - qos_after
      - os_update
      - engine_inputs
      - images
      - engine_versions
      - engine_files
      - recipes
      - recipe_translation
      - ray_files
      - nccl
      - nccl_verdicts
      - serving_sweep
      - serving_verdicts
      - cluster_status
      - awx
      - awx_unreached
      - report
      - doctor
      - first_contact
      - verdicts
      - observability
      - web_ui
  options:
    description:
      - Options of the planner, as C(PLANNERS) in C(plugins/plugin_utils/*/planners.py) lists them.
      - Some of them say in which variable something is, and the planner gets its value of every host of the play.
        That is a variable, a field of one (C(a.b)), a list of such of which the first counts that a host has, or a
        mapping of such.
    type: dict
    default: {}
extends_documentation_fragment:
  - sparkmatrix.cluster.attributes
  - sparkmatrix.cluster.attributes.info_module
author:
  - The sparkmatrix.cluster authors (@sparkmatrix)
"""

EXAMPLES = r"""
- name: Judge all machines before the change
  sparkmatrix.cluster.plan:
    planner: qos_before
    options:
      profile: roce
      nodes: seen # the variable that every host has registered
      facts: "{{ plan.facts }}"
  run_once: true
"""

RETURN = r"""
warnings:
  description: Every finding that is no reason to refuse. What else is returned depends on the planner.
  returned: success
  type: list
  elements: str
"""
