# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Simulated ConnectX-7 of a lab node, and the faults that can be injected into it."""
