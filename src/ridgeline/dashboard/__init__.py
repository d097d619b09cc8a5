"""What the records look like: pages of one file each, and maps for the terminal."""
