"""The public interface as a type checker sees it."""
