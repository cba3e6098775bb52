"""Tests; a package so that suites can share the simulator (tests.agreement.simulation) and helpers (tests.support)."""
