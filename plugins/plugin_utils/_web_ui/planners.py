# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The planner of the layer web_ui: unit and environment of the chat page, for the head."""

from __future__ import annotations

from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import Finding
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.image import is_id
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._web_ui import names
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._base.planner import Options, Planner, judged
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._web_ui import files
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._web_ui.files import Gateway, Settings

REFUSED = "The chat page cannot be set up, and nothing was changed:"
KINDS = {str: "str", int: "int"}


def made(options: Options) -> dict[str, Any]:
    settings = Settings(**{name: options[name] for name in vars(Settings())})
    image = options["image_id"]
    wrong = [Finding("", f"{image!r:.100} is no id of an image", "Look at: docker image ls")] if image else []
    shown = judged(REFUSED, [*files.check(settings), *([] if is_id(image) else wrong)])
    gateway = Gateway(options["gateway_port"])
    made = files.make(settings, gateway, options["marks"], image)
    return {
        **shown,
        "files": [{"path": path, "content": content} for path, content in made.files.items()],
        "unit": {"name": names.UNIT, "hash": made.hash},
        "ask": made.ask,
        "filter": made.filter,
    }


PLANNERS = {
    "web_ui": Planner(
        made,
        {
            "gateway_port": {"type": "int", "required": True},
            "image_id": {"type": "str", "default": ""},
            "marks": {"type": "str", "default": "", "no_log": False},
            **{
                name: {"type": KINDS.get(type(usual), "dict"), "default": usual}
                for name, usual in vars(Settings()).items()
            },
        },
    ),
}
