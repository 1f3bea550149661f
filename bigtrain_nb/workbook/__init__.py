"""The reader's side of the notebooks: predictions, scores, exercises, `%%workers`."""
