# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This file documents an action plugin of the same name; it never runs.

from __future__ import annotations

DOCUMENTATION = r"""
module: engine_plan
short_description: Compute what Ray and the engine run on each node
version_added: 0.1.0
description:
  - "Internal to this collection: no compatibility promise."
  - Computes from a recipe, the fabric facts of all hosts, their memory and settings one plan per host. Command lines,
    environment, memory budget and the reason for the parallel sizes are in it.
  - Refuses, with all reasons at once, a model that does not fit, sizes that do not divide, options that this version of
    the engine does not know, and a fabric that is not applied.
  - Runs on the controller, once for all hosts, and contacts none of them. It reads C(spark_fabric) of this run,
    else the fact that preflight has read (C(spark_node_info)); memory comes from the result of preflight, too.
options:
  recipe:
    description: Name of a recipe, or the path of a recipe file on the controller.
    type: str
    required: true
  recipe_paths:
    description: Directories with recipes that come before the shipped ones.
    type: list
    elements: str
    default: []
  engine:
    description: C(vllm), C(sglang) or C(tensorrt-llm); empty means as the recipe says.
    type: str
    default: ''
  launch:
    description:
      - How the ranks of vLLM find each other, C(ray) or C(native). C(auto) is Ray.
      - SGLang always starts natively, TensorRT-LLM with MPI.
    type: str
    default: auto
  runtime:
    description: C(venv) or C(container); empty means as the recipe says, else C(venv) for vLLM.
    type: str
    default: ''
  image:
    description: Container image; empty means as the recipe says.
    type: str
    default: ''
  image_build:
    description:
      - From what one node builds the image. O(image) is its name then, with a tag; what is built gets a digest of
        Dockerfile and arguments behind it.
    type: dict
    default: {}
    suboptions:
      dockerfile:
        description: Name of one that comes with the collection, or path of a file on the controller.
        type: str
      arguments:
        description: Build arguments. They can be read in the image, so no secrets.
        type: dict
  profile:
    description: C(chatbot), C(agentic), C(batch) or C(long_context), laid over the recipe.
    type: str
    default: ''
  model_files:
    description:
      - Directory on the controller with the model's C(config.json) and C(model.safetensors.index.json).
      - Shape and weights are read from there instead of from the recipe.
    type: path
    default: ''
  only_print:
    description:
      - Nothing will be started from this plan. A fabric that is not there is assumed.
      - What this release plans and does not start yet is a warning then.
    type: bool
    default: false
  details:
    description: The summary has addresses, memory by parts, all figures of others and the engine's command line, too.
    type: bool
    default: false
  context:
    description: Longest request in tokens; 0 means as the recipe says.
    type: int
    default: 0
  concurrency:
    description: Requests of full length that have to fit at once; 0 means as the recipe says.
    type: int
    default: 0
  gpu_memory_utilization:
    description: Share of the memory for weights and KV cache; 0 means computed.
    type: float
    default: 0
  pin_kv_cache:
    description: Give vLLM the size of the KV cache in bytes, as planned, instead of letting it measure.
    type: bool
    default: true
  free_memory_gib:
    description: Memory that is free on an idle node, in GiB; 0 means not measured. The share is never above it.
    type: float
    default: 0
  tensor_parallel_size:
    description: Ranks that split each layer; 0 means computed.
    type: int
    default: 0
  pipeline_parallel_size:
    description: Ranks that hold consecutive layers; 0 means computed.
    type: int
    default: 0
  data_parallel_size:
    description: Replicas of the model; 0 means computed.
    type: int
    default: 0
  expert_parallel:
    description: Spread experts whole over the tensor parallel ranks. C(auto) means where their shards cannot be cut.
    type: str
    choices: [auto, 'true', 'false']
    default: auto
  served_model_name:
    description: What a client calls the model; empty means as the recipe says.
    type: str
    default: ''
  model:
    description: Name or path of the model; empty means as the recipe says.
    type: str
    default: ''
  port:
    description: TCP port of the API.
    type: int
    default: 8000
  rendezvous_port:
    description: TCP port on the head where ranks meet without Ray.
    type: int
    default: 29501
  options:
    description: Options of the engine by whole name, over the recipe's.
    type: dict
    default: {}
  environment:
    description: Environment of all ranks, over the recipe's.
    type: dict
    default: {}
  allow:
    description: What is refused unless it is named here, such as C(trust-remote-code) of a recipe, or C(moving-image).
    type: list
    elements: str
    default: []
  media_domains:
    description: Hosts from which images that a request names by URL may be fetched. Empty means none.
    type: list
    elements: str
    default: []
  mount_directories:
    description: Directories of the nodes that a recipe may bring files from into its container.
    type: list
    elements: path
    default: [/opt/sparkmatrix/models]
  requirements:
    description: Pinned requirements of the engine's environment; they tell the version.
    type: list
    elements: str
    default: []
  venv_path:
    description: The engine's environment on the nodes.
    type: path
    default: /opt/sparkmatrix/engine
  home:
    description: Home directory of the service user.
    type: path
    default: /var/lib/sparkmatrix/home
  hf_home:
    description: Where models from Hugging Face are kept on the nodes.
    type: path
    default: /opt/sparkmatrix/models/huggingface
  ray:
    description: What differs from the defaults of Ray's part.
    type: dict
    default: {}
    suboptions:
      port:
        description: TCP port of the head's control service.
        type: int
      dashboard_port:
        description: TCP port of the dashboard.
        type: int
      object_store_bytes:
        description: Shared memory for Ray's objects.
        type: int
      num_cpus:
        description: Logical CPUs of each node.
        type: int
      temp_dir:
        description: Directory for sessions and logs.
        type: path
      token_path:
        description: File with the token.
        type: path
  container:
    description: What differs from the defaults of the container.
    type: dict
    default: {}
    suboptions:
      gpus:
        description: GPUs, C(all), C(cdi) or C(none).
        type: str
      devices:
        description: Devices of the node.
        type: list
        elements: path
      memlock:
        description: Limit of locked memory, C(infinity) or bytes.
        type: str
      nofile:
        description: Limit of open files.
        type: str
      nccl_conf:
        description: File of the node that becomes C(/etc/nccl.conf).
        type: path
      stop_timeout_s:
        description: Seconds that the engine has for ending its requests.
        type: int
  group:
    description: Inventory group of the nodes.
    type: str
    default: sparks
  services:
    description:
      - Several services side by side. Each has a C(name); C(recipe), C(port) and the other keys of an entry are laid
        over the options above.
      - C(nodes) are hosts of the group, the head first; without it all of them. C(memory_share) is its part of what
        engines may have of a node.
      - Empty means one service on all nodes, as the other options say.
    type: list
    elements: dict
    default: []
  firewall:
    description: Whether the nodes' firewall keeps everybody but the other nodes away from an API on the network.
    type: bool
    default: false
attributes:
  check_mode:
    support: full
    details:
      - A fabric that is only planned is good enough then.
  diff_mode:
    support: none
  idempotent:
    support: full
extends_documentation_fragment:
  - sparkmatrix.cluster.attributes
author:
  - The sparkmatrix.cluster authors (@sparkmatrix)
"""

EXAMPLES = r"""
- name: Compute the plan of all nodes
  sparkmatrix.cluster.engine_plan:
    recipe: qwen3-8b
    requirements: [vllm==0.33.0]
  register: engine
  run_once: true

- name: Set each node's part of the plan
  ansible.builtin.set_fact:
    spark_plan: "{{ engine.plans[inventory_hostname] }}"
"""

RETURN = r"""
plans:
  description:
    - One plan per host, as C(docs/engine-plan.schema.json) describes it.
  returned: success
  type: dict
  contains:
    here:
      description: The services on this host, the one that spans hosts first; empty where there is none.
      type: list
      elements: dict
      contains:
        instance: {description: Name of the service; empty where it is the only one., type: str}
        role: {description: C(head) or C(worker)., type: str}
        backend: {description: 'C(single), C(ray), C(native) or C(mpi).', type: str}
        runtime: {description: C(venv) or C(container)., type: str}
        engine: {description: 'Command, environment, endpoint and ports of the engine.', type: dict}
        image: {description: Container image; empty in an environment., type: str}
        mounts: {description: Paths of the node in the container., type: list, elements: dict}
        venv: {description: Path and requirements of the engine's environment., type: dict}
        parallel: {description: 'C(tensor), C(pipeline), C(data) sizes and C(expert), with a C(reason).', type: dict}
        memory: {description: 'The budget of one rank, in bytes.', type: dict}
        expectation: {description: 'Tokens per second of one stream, and published figures.', type: dict}
        not_pinned: {description: What may change under the same name., type: list, elements: str}
        config_hash: {description: Changes with everything that makes it another service., type: str}
    heads: {description: The services whose head is this host., type: list, elements: dict}
    ray: {description: 'Command, environment and members of Ray on this host, where it is C(needed).', type: dict}
    mpi: {description: The host's C(role) in a job of MPI; empty where it has none., type: dict}
    images: {description: Container images that are needed on this host., type: list, elements: dict}
    environments: {description: Python environments that are needed on this host., type: list, elements: dict}
    open_to_peers: {description: Other nodes have to come in here., type: bool}
    cluster: {description: Head and number of all nodes., type: dict}
    services: {description: 'All services as the head of the cluster reaches them.', type: list, elements: dict}
    identity: {description: The same on all hosts; changes with every service of any of them., type: str}
    schema: {description: Version of this document., type: int}
summary:
  description: The plan in a few sentences.
  returned: success
  type: list
  elements: str
  sample: ['Endpoint: http://127.0.0.1:8000/v1 on spark1, model name minimax-m2.7-awq']
sbatch:
  description: The same plan as a batch script for Slurm, with what was assumed, or why there is none.
  returned: success
  type: dict
  contains:
    script: {description: The script., type: str}
    assumed:
      description: Interfaces and addresses that no machine was asked for, in lines.
      type: list
      elements: str
    refused: {description: Why there is none., type: str}
"""
