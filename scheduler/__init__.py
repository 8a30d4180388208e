"""Provably optimal activation checkpointing."""
