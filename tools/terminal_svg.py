"""Draw terminal output as an SVG with rich: terminal_svg.py TITLE < output > docs/images/demo.svg."""

from __future__ import annotations

import io
import re
import sys

from rich.console import Console
from rich.text import Text

console = Console(record=True, width=118, file=io.StringIO())
for line in sys.stdin.read().splitlines():
    style = "bold cyan" if line.startswith("-- ") else "green" if line.startswith("{") else ""
    console.print(Text(line, style=style), soft_wrap=False)
svg = console.export_svg(title=sys.argv[1])
sys.stdout.write(re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL))  # a picture fetches nothing
