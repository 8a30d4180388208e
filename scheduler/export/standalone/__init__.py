"""What runs a plan in an exported file, which needs the framework alone.

`scheduler.export.python` puts an exported file together from the text of these modules. Each is a
module as any other, but nothing of the package imports it: its frameworks may be absent. What
`scheduler.pytorch.checkpointing` does is here in short, with less said about models it refuses.
"""
