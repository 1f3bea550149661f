"""A worker that never stops talking."""

while True:
    print("and so on")
