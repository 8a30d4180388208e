"""What stays for the whole run: parameters, gradients, the optimizer's state."""
