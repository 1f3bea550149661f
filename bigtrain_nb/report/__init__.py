"""One page of what a reader predicted and solved: for the reader, and for somebody who teaches."""
