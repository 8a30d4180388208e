"""A pipeline's plan carried out: a model cut into stages for `torch.distributed.pipelining`."""
