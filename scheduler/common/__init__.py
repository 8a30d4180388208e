"""What every room uses: errors, words, sizes, files; nothing here knows of costs or plans."""
