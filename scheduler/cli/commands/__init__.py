"""The commands, a file each: its options with their help, and what it does with them.

A file has ``HELP``, a noun phrase; ``add_arguments``; and ``run``, which returns the exit status
and imports what it needs itself, so that ``--help`` loads none of it. `scheduler.cli.main` has the
list of them.
"""
