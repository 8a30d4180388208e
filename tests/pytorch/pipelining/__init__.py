"""Tests of `scheduler.pytorch.pipelining`."""
