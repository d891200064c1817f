# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

"""The tool that makes option tables, on small packages written in the ways of each engine."""

import json

import make_option_table as option_table
import pytest
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import option_tables

VLLM = {
    "vllm/config/model.py": """
from typing import Annotated, ClassVar, Literal
DType = Literal["auto", "half"]
Mode = Literal["none", "all"] | None

@config
class Inner:
    deep: int = 1

@config
class ModelConfig:
    kept: ClassVar[int] = 1
    model: str = "x"
    dtype: DType = "auto"
    mode: Mode = None
    max_model_len: int | None = None
    seed: "int" = 0
    share: float = 0.9
    names: list[str] | None = None
    enable_x: bool = False
    inner: Inner | None = None
    extra: dict[str, int] | None = None
    token: bool | str | None = None
    bounded: Annotated[int, "ge=1"] = 1
    free: str | Literal["a"] = "a"
""",
    "vllm/engine/arg_utils.py": """
class EngineArgs:
    @staticmethod
    def add_cli_args(parser):
        model_kwargs = get_kwargs(ModelConfig)
        group = parser.add_argument_group(title="Model")
        group.add_argument("--model", **model_kwargs["model"])
        group.add_argument("--dtype", **model_kwargs["dtype"])
        group.add_argument("--mode", **model_kwargs["mode"])
        group.add_argument("--max-model-len", **model_kwargs["max_model_len"])
        group.add_argument("--seed", "-s", **{**model_kwargs["seed"], "default": None})
        group.add_argument("--share", **model_kwargs["share"])
        group.add_argument("--names", **model_kwargs["names"])
        group.add_argument("--enable-x", **model_kwargs["enable_x"])
        group.add_argument("--inner", **model_kwargs["inner"])
        group.add_argument("--extra", **model_kwargs["extra"])
        group.add_argument("--hf-token", **model_kwargs["token"])
        group.add_argument("--bounded", **model_kwargs["bounded"])
        group.add_argument("--free", **model_kwargs["free"])
        held = model_kwargs["dtype"]
        group.add_argument("--other-dtype", **held)
        group.add_argument("--plain", type=int)
        group.add_argument("--picked", choices=["a", "b"])
        group.add_argument("--many", nargs="+")
        group.add_argument("--off", action=argparse.BooleanOptionalAction)
""",
    "vllm/entrypoints/launchers/cli_args.py": """
class BaseFrontendArgs:
    port: int = 8000

class FrontendArgs(BaseFrontendArgs):
    host: str | None = None
    allowed_origins: list[str] = field()

    @classmethod
    def add_cli_args(cls, parser):
        frontend_kwargs = get_kwargs(cls)

def make_arg_parser(parser):
    parser.add_argument("model_tag", type=str, nargs="?")
    parser.add_argument("--headless", action="store_true")
""",
    "vllm/utils/argparse_utils.py": "class EnableDisableAction: pass\n",
    "vllm/envs.py": "environment_variables: dict = {'VLLM_A': lambda: 1, **{'VLLM_B': 2}}\n",
    "vllm/tool_parsers/__init__.py": "_TOOL_PARSERS_TO_REGISTER = {'hermes': ('a', 'b')}\n",
    "vllm/v1/attention/backends/registry.py": "class AttentionBackendEnum(Enum):\n    FLASH = 'x'\n",
}
SGLANG = {
    "sglang/srt/server_args.py": """
class ServerArgs:
    @staticmethod
    def add_cli_args(parser):
        add_cli_args_from_dataclass(parser, ServerArgs)
        parser.add_argument("--reasoning-parser", type=str, choices=["auto"] + known())
        parser.add_argument("--disable-cuda-graph", action=DeprecatedStoreTrueAction)
""",
    "sglang/srt/arg_groups/fields/basic.py": """
class Fields:
    model_path: A[str, Arg(help="x", aliases=["--model"])]
    tp_size: A[int, Arg(cli_name="--tensor-parallel-size", aliases=["--tp-size"])] = 1
    enable_metrics: A[bool, "x"] = False
    hidden: A[bool, Arg(no_cli=True)] = False
    mode: A[Literal["a", "b"], "x"] = "a"
    loads: A[Optional[str], Arg(type_parser=json_list_type)] = None
    names: A[Optional[List[str]], "x"] = None
    listed: A[str, Arg(choices=["p", "q"], type_parser=parse)] = "p"
    several: A[str, Arg(nargs="*")] = None
    both: A[bool, Arg(action=argparse.BooleanOptionalAction)] = True
    plain: int = 3
""",
    "sglang/srt/parser/reasoning_parser.py": "class P:\n    DetectorMap: Dict[str, type] = {'qwen3': Q}\n",
    "sglang/srt/function_call/function_call_parser.py": "class P:\n    ToolCallParserEnum: dict = {'qwen': Q}\n",
}
CLICK = """
@cli.command()
@click.option("--head", is_flag=True, default=False)
@click.option("--port", "-p", type=int)
@click.option("--share", type=float)
@click.option("--include", type=bool)
@click.option("--backend", type=click.Choice(["a", "b"]))
@click.option("--telemetry/--no-telemetry", default=True)
@add_click_logging_options
def {}(head, port): pass
"""


def tree(tmp_path, files):
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_vllm(tmp_path):
    table = option_table.make("vllm", "1.0", tree(tmp_path, VLLM))
    assert table["options"] == {
        "--allowed-origins": "json",
        "--bounded": "int",
        "--dtype": ["auto", "half"],
        "--enable-x": "flag",
        "--extra": "json",
        "--free": "str",
        "--headless": "flag",
        "--hf-token": "str",
        "--host": "str",
        "--inner": "json",
        "--many": "list",
        "--max-model-len": "size",
        "--mode": ["None", "all", "none"],
        "--model": "str",
        "--names": "list",
        "--off": "flag",
        "--other-dtype": ["auto", "half"],
        "--picked": ["a", "b"],
        "--plain": "int",
        "--port": "int",
        "--seed": "int",
        "--share": "float",
    }
    assert table["aliases"] == {"-s": "--seed"}
    assert table["opposites"] == {"--enable-x": "--disable-x", "--off": "--no-off"}
    assert table["values"] == {"--attention-backend": ["FLASH"], "--tool-call-parser": ["hermes"]}
    assert "VLLM_A" in table["environment"]


def test_sglang(tmp_path):
    table = option_table.make("sglang", "1.0", tree(tmp_path, SGLANG))
    assert table["options"] == {
        "--both": "flag",
        "--disable-cuda-graph": "flag",
        "--enable-metrics": "flag",
        "--listed": ["p", "q"],
        "--loads": "json",
        "--mode": ["a", "b"],
        "--model-path": "str",
        "--names": "list",
        "--reasoning-parser": "str",
        "--several": "list",
        "--tensor-parallel-size": "int",
    }
    assert table["aliases"] == {"--model": "--model-path", "--tp-size": "--tensor-parallel-size"}
    assert table["opposites"] == {"--both": "--no-both"}
    assert table["values"] == {"--reasoning-parser": ["auto", "qwen3"], "--tool-call-parser": ["auto", "qwen"]}


@pytest.mark.parametrize(
    ("engine", "path", "function"),
    [("ray", "ray/scripts/scripts.py", "start"), ("tensorrt-llm", "tensorrt_llm/commands/serve.py", "serve")],
)
def test_click(tmp_path, engine, path, function):
    table = option_table.make(engine, "1.0", tree(tmp_path, {path: CLICK.format(function)}))
    options = table["options"]
    assert (options["--head"], options["--port"], options["--share"]) == ("flag", "int", "float")
    assert options["--backend"] == ["a", "b"]
    assert "true" in options["--include"]
    assert options["--telemetry"] == "flag"
    assert table["aliases"]["--no-telemetry"] == "--telemetry"
    assert ("--verbose" in options) == (engine == "ray")


def test_an_older_table_is_what_differs(tmp_path, monkeypatch):
    monkeypatch.setattr(option_table, "TABLES", tmp_path)
    newest = {"engine": "x", "version": "2", "options": {"--a": "int", "--b": "str"}, "environment": ["A", "B"]}
    older = {"engine": "x", "version": "1", "options": {"--a": "str", "--c": "int"}, "environment": ["B", "C"]}
    made = option_table.difference(older, newest)
    assert made["options"] == {"--a": "str", "--b": None, "--c": "int"}
    assert made["environment"] == {"A": None, "C": True}
    for table in (newest, made):
        (tmp_path / f"x-{table['version']}.json").write_text(option_table.dump(table))
    monkeypatch.setattr(option_tables, "DIRECTORY", tmp_path)
    assert option_tables.document("x", "1") == older


def test_shipped_tables_are_in_the_tools_form():
    for path in option_table.TABLES.glob("*.json"):
        text = path.read_text(encoding="utf-8")
        assert option_table.dump(json.loads(text)) == text
