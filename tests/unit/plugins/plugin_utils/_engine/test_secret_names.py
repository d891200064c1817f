# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What may not be written into a file that every account reads."""

from __future__ import annotations

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import option_tables
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.secret_names import looks_secret

NAMES = (
    *("HF_TOKEN", "API_KEY", "WANDB_APIKEY", "WANDB_API_KEY", "API_KEYS", "OPENAI_API_KEYS", "PGPASSWORD", "DB_PASS"),
    *("MYSQL_PWD", "AWS_SECRET_ACCESS_KEY", "GOOGLE_CREDENTIALS", "db_password", "AUTH_TOKENS", "SLACK_WEBHOOK_URL"),
    *("REDISCLI_AUTH_TOKEN", "SSH_PASSPHRASE", "GITHUB_PAT", "SUDO_PASSWD", "SIGNING_KEYS"),
    *("REDISCLI_AUTH", "BASIC_AUTH", "CI_JOB_JWT", "BEARER", "ADMIN_PW"),
)
VALUES = (
    *("postgres://me:s3cr3t@db/x", "http://me:pw@proxy:3128", "https://ghp_token@github.com/x", "me:pw@proxy:3128"),
    *("redis://:pw@cache:6379/0", "host=db password=x", "Endpoint=sb://x;AccountKey=abc=", "https://h/?sig=abc&x=1"),
    *("Bearer abc", "hf_abcdefghijklmnop", "--header=x hf_abcdefghijklmnop", "sk-abcdefghijklmnopqrst"),
    "--key dckr_pat_abcdefghijklm",
)


@pytest.mark.parametrize("name", NAMES)
def test_names_of_secrets(name):
    assert looks_secret(name) and looks_secret(name, "s3cr3t") and not looks_secret(name, "False")


@pytest.mark.parametrize("value", VALUES)
def test_values_that_hold_a_secret_whatever_their_name(value):
    assert looks_secret("DATABASE_URL", value) and looks_secret("http_proxy", value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HF_TOKEN_PATH", "/etc/sparkmatrix/hf.token"),
        ("VLLM_MAX_TOKENS_PER_EXPERT_FP4_MOE", "163840"),
        ("TOKENIZERS_PARALLELISM", "true"),
        ("WEBUI_AUTH", "1"),
        ("PWD", "/srv"),
        ("http_proxy", "http://proxy:3128"),
        ("DATABASE_URL", "sqlite:////data/x.db"),
        ("SEARCH_HOST", "sg.example.internal"),  # small letters are no token's beginning
        ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"),
        ("GIT_SSH", "ssh://git@host/x"),
        ("NCCL_IB_HCA", "=rocep1s0f0:1,roceP2p1s0f0:1"),
    ],
)
def test_what_is_none(name, value):
    assert not looks_secret(name, value)


def test_of_an_engines_own_variables_two_are_secrets():
    tables = [option_tables.load("vllm", version) for version in option_tables.versions("vllm")]
    assert {name for table in tables for name in table.environment if looks_secret(name)} == {
        "S3_SECRET_ACCESS_KEY",
        "VLLM_API_KEY",
    }
