"""Parts of a model that run in pieces, so that what is alive inside them at once is smaller."""
