"""What only the series needs: exercises, drawings of one cell, imitated machines and stores."""
