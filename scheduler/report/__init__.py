"""How results read: tables and texts."""
