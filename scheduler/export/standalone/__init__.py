"""What runs a plan in an exported file, which needs torch alone."""
