"""What several of the advanced rooms use."""
