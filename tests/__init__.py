"""Tests; a package so that suites can share the simulator (tests.simulation)."""
