"""Exact rematerialisation on general graphs: problems, replay, and the solvers."""
