"""Stands in for get-pip.py in ansible-test's cache: installs the requested pip from the configured package index."""

from __future__ import annotations

import ensurepip
import importlib
import os
import runpy
import sys

options = [word for word in sys.argv[1:] if word not in ("--no-setuptools", "--no-wheel")]
if not any(word.startswith("pip==") for word in options):
    options.append("pip")
if "--no-setuptools" not in sys.argv:
    options.append("setuptools")
if "--no-wheel" not in sys.argv:
    options.append("wheel")
environment = dict(os.environ)
ensurepip.bootstrap(default_pip=True)
# It replaces pip's own variables, such as the one of the package index.
os.environ.clear()
os.environ.update(environment)
importlib.invalidate_caches()
sys.argv = ["pip", "install", "--upgrade", *options]
runpy.run_module("pip", run_name="__main__", alter_sys=True)
