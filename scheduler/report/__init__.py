"""How results read: tables and pictures."""
