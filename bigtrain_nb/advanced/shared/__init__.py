"""What several of the advanced packages use."""
