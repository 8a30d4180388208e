"""The files of plans: fields, items and steps, read and written."""
