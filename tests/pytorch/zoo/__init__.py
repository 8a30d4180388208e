"""The models that people have, made tiny: what `benchmarks/zoo.py` runs, and a tenth of it here."""
