#!/usr/bin/env bash
# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later
# What a mod does: it changes the image that it is run in.
set -e
cp greeting "$WORKSPACE_DIR/greeting"
