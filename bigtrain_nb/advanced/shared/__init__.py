"""Code shared by the advanced packages."""
